/* Places and constants that table.rs has. The file does not compile if the headers differ. */
#include <infiniband/verbs.h>
#include <stddef.h>

_Static_assert(sizeof(struct ibv_context_ops) == 256, "ops");
_Static_assert(offsetof(struct ibv_context, ops) == 8, "ops");
_Static_assert(offsetof(struct ibv_context_ops, poll_cq) == 88, "poll_cq");
_Static_assert(offsetof(struct ibv_context_ops, req_notify_cq) == 96, "req_notify_cq");
_Static_assert(offsetof(struct ibv_context_ops, post_send) == 200, "post_send");
_Static_assert(offsetof(struct ibv_context_ops, post_recv) == 208, "post_recv");
_Static_assert(offsetof(struct ibv_context, async_fd) == 268, "async_fd");
_Static_assert(offsetof(struct ibv_qp, qp_num) == 52, "qp_num");
_Static_assert(offsetof(struct ibv_mr, lkey) == 36, "lkey");
_Static_assert(offsetof(struct ibv_comp_channel, fd) == 8, "fd");
_Static_assert(sizeof(struct ibv_wc) == 48, "wc");
_Static_assert(offsetof(struct ibv_wc, byte_len) == 20, "byte_len");
_Static_assert(offsetof(struct ibv_wc, src_qp) == 32, "src_qp");
_Static_assert(offsetof(struct ibv_wc, wc_flags) == 36, "wc_flags");
_Static_assert(offsetof(struct ibv_wc, slid) == 42, "slid");
_Static_assert(sizeof(struct ibv_send_wr) == 128, "send_wr");
_Static_assert(offsetof(struct ibv_send_wr, opcode) == 28, "opcode");
_Static_assert(offsetof(struct ibv_send_wr, wr.ud.ah) == 40, "ah");
_Static_assert(offsetof(struct ibv_send_wr, wr.ud.remote_qkey) == 52, "remote_qkey");
_Static_assert(sizeof(struct ibv_recv_wr) == 32, "recv_wr");
_Static_assert(sizeof(struct ibv_sge) == 16, "sge");
_Static_assert(sizeof(struct ibv_qp_init_attr) == 64, "qp_init_attr");
_Static_assert(offsetof(struct ibv_qp_init_attr, cap.max_inline_data) == 48, "max_inline_data");
_Static_assert(offsetof(struct ibv_qp_init_attr, qp_type) == 52, "qp_type");
_Static_assert(sizeof(struct ibv_qp_attr) == 144, "qp_attr");
_Static_assert(offsetof(struct ibv_qp_attr, qkey) == 16, "qkey");
_Static_assert(offsetof(struct ibv_qp_attr, pkey_index) == 120, "pkey_index");
_Static_assert(offsetof(struct ibv_qp_attr, port_num) == 129, "port_num");
_Static_assert(sizeof(struct ibv_ah_attr) == 32, "ah_attr");
_Static_assert(offsetof(struct ibv_ah_attr, grh.sgid_index) == 20, "sgid_index");
_Static_assert(offsetof(struct ibv_ah_attr, is_global) == 29, "is_global");
_Static_assert(sizeof(struct ibv_port_attr) == 52, "port_attr");
_Static_assert(offsetof(struct ibv_port_attr, active_mtu) == 8, "active_mtu");
_Static_assert(offsetof(struct ibv_port_attr, lid) == 34, "port lid");
_Static_assert(offsetof(struct ibv_port_attr, link_layer) == 46, "link_layer");
_Static_assert(offsetof(struct ibv_async_event, event_type) == 8, "event_type");
_Static_assert(IBV_QPT_UD == 4 && IBV_QPS_INIT == 1 && IBV_QPS_RTR == 2 && IBV_QPS_RTS == 3, "states");
_Static_assert(IBV_QP_STATE == 1 && IBV_QP_PKEY_INDEX == 16 && IBV_QP_PORT == 32, "masks");
_Static_assert(IBV_QP_QKEY == 64 && IBV_QP_SQ_PSN == 65536, "masks");
_Static_assert(IBV_WR_SEND == 2 && IBV_SEND_SIGNALED == 2 && IBV_SEND_INLINE == 8, "sends");
_Static_assert(IBV_ACCESS_LOCAL_WRITE == 1 && IBV_WC_SUCCESS == 0 && IBV_WC_GRH == 1, "receives");
_Static_assert(IBV_PORT_ACTIVE == 4 && IBV_LINK_LAYER_ETHERNET == 2, "port");
_Static_assert(IBV_EVENT_CQ_ERR == 0 && IBV_EVENT_QP_FATAL == 1 && IBV_EVENT_DEVICE_FATAL == 8, "events");
