/* The functions of DPDK that Petrel calls: many are inline, and exist in headers alone. `petrel dpdk-shim` compiles this file against the
 * host's DPDK. `table.rs` has the other side of every declaration here. */

/* DPDK 22.11 calls the functions of interrupt handles experimental. */
#define ALLOW_EXPERIMENTAL_API

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_interrupts.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_udp.h>
#include <rte_version.h>

#define ABI 2
#define BURST_MAX 64
#define RX_SUMS (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM)

/* A buffer of DPDK, and its bytes. */
struct frame {
	struct rte_mbuf *mbuf;
	uint8_t *data;
	uint32_t bytes;
	/* Most bytes of a frame to send. */
	uint32_t room;
	/* Of a received frame: what the port says about the checksums. */
	uint32_t judgement;
	/* Of a frame to send: the bytes of the IP header, if the port is to complete the checksum of UDP, or 0. */
	uint32_t ip_bytes;
};

enum { UNKNOWN, RIGHT, WRONG };

struct port_info {
	char name[RTE_ETH_NAME_MAX_LEN];
	char driver[64];
	uint8_t mac[6];
	uint16_t mtu;
	uint32_t if_index;
	uint16_t receive_frames;
	uint16_t send_frames;
	/* Whether the port completes the checksums of UDP. */
	uint32_t completes_sums;
};

static struct rte_mempool *pool;
static pthread_key_t registered;

/* The gate of DPDK's interrupt thread: readable while the thread is to wait. */
static int gate;
static sem_t held, go;

static const char *last_error(void) { return rte_strerror(rte_errno); }

/* Runs in the interrupt thread. */
static void wait_at_gate(void *unused)
{
	static int is_first = 1;
	struct sched_param first = {.sched_priority = sched_get_priority_max(SCHED_RR)};

	(void)unused;
	/* Bursts wait for this thread, also those of threads with a real-time priority on every processor. Users without the right have none. */
	if (is_first)
		(void)pthread_setschedparam(pthread_self(), SCHED_RR, &first);
	is_first = 0;
	sem_post(&held);
	while (sem_wait(&go) != 0 && errno == EINTR)
		;
}

/* Other callbacks of the thread change rings that a burst may be using: net_memif unmaps the memory of a peer that leaves. So the thread waits
 * at the gate whenever a burst may run. */
static int make_gate(void)
{
	struct rte_intr_handle *handle = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);

	gate = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (gate < 0 || handle == NULL || sem_init(&go, 0, 0) != 0 || sem_init(&held, 0, 0) != 0 ||
	    rte_intr_fd_set(handle, gate) != 0 || rte_intr_type_set(handle, RTE_INTR_HANDLE_EXT) != 0)
		return -1;
	return rte_intr_callback_register(handle, wait_at_gate, NULL);
}

/* Asks the interrupt thread to come to the gate. */
static void close_gate(void) { (void)eventfd_write(gate, 1); }

/* Returns true once after `close_gate`, when the thread has come. */
static int is_held(void) { return sem_trywait(&held) == 0; }

/* Lets the thread go on, after a true `is_held`. */
static void open_gate(void)
{
	eventfd_t count;

	(void)eventfd_read(gate, &count);
	sem_post(&go);
}

static void leave(void *unused)
{
	(void)unused;
	rte_thread_unregister();
}

/* Gives the calling thread a cache of buffers, until the thread ends. Without one the thread works, too. */
static void enter(void)
{
	if (rte_lcore_id() == LCORE_ID_ANY && rte_thread_register() == 0)
		pthread_setspecific(registered, &registered);
}

static int start_eal(int argc, char **argv)
{
	if (rte_eal_init(argc, argv) < 0)
		return -1;
	if (pthread_key_create(&registered, leave) != 0 || make_gate() != 0) {
		rte_errno = rte_errno ? rte_errno : ENOMEM;
		return -1;
	}
	return 0;
}

/* Writes the numbers of the first `max` ports, and returns the number of all. */
static unsigned int list_ports(uint16_t *numbers, unsigned int max)
{
	unsigned int count = 0;
	uint16_t port;

	RTE_ETH_FOREACH_DEV(port) {
		if (count < max)
			numbers[count] = port;
		count++;
	}
	return count;
}

static int describe(uint16_t port, struct port_info *info)
{
	struct rte_eth_dev_info device;
	struct rte_ether_addr mac;
	int error = rte_eth_dev_info_get(port, &device);

	memset(info, 0, sizeof(*info));
	if (error == 0)
		error = rte_eth_macaddr_get(port, &mac);
	if (error == 0)
		error = rte_eth_dev_get_mtu(port, &info->mtu);
	if (error == 0)
		error = rte_eth_dev_get_name_by_port(port, info->name);
	if (error != 0) {
		rte_errno = -error;
		return -1;
	}
	memcpy(info->mac, mac.addr_bytes, sizeof(info->mac));
	strncpy(info->driver, device.driver_name, sizeof(info->driver) - 1);
	info->if_index = device.if_index;
	return 0;
}

/* Prepares a port with a queue in each direction. The numbers of frames are wishes, and become the granted ones. */
static int prepare(uint16_t port, struct port_info *info, unsigned int buffers, uint16_t buffer_bytes)
{
	struct rte_eth_conf conf = {0};
	struct rte_eth_dev_info device;
	int error = rte_eth_dev_info_get(port, &device);

	if (pool == NULL)
		pool = rte_pktmbuf_pool_create("petrel", buffers, 32, 0, buffer_bytes + RTE_PKTMBUF_HEADROOM,
					       SOCKET_ID_ANY);
	if (pool == NULL)
		return -1;
	if (error == 0) {
		conf.rxmode.offloads = device.rx_offload_capa & RX_SUMS;
		conf.txmode.offloads = device.tx_offload_capa & RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
		info->completes_sums = conf.txmode.offloads != 0;
		error = rte_eth_dev_configure(port, 1, 1, &conf);
	}
	if (error == 0)
		error = rte_eth_dev_adjust_nb_rx_tx_desc(port, &info->receive_frames, &info->send_frames);
	if (error == 0)
		error = rte_eth_rx_queue_setup(port, 0, info->receive_frames, SOCKET_ID_ANY, NULL, pool);
	if (error == 0)
		error = rte_eth_tx_queue_setup(port, 0, info->send_frames, SOCKET_ID_ANY, NULL);
	rte_errno = error < 0 ? -error : rte_errno;
	return error == 0 ? 0 : -1;
}

static int start(uint16_t port)
{
	int error = rte_eth_dev_start(port);

	/* Neighbours of IPv6 ask by multicast; devices without the filter pass all frames. */
	(void)rte_eth_allmulticast_enable(port);
	rte_errno = error < 0 ? -error : rte_errno;
	return error == 0 ? 0 : -1;
}

static void stop(uint16_t port) { (void)rte_eth_dev_stop(port); }

static int is_up(uint16_t port)
{
	struct rte_eth_link link = {0};

	return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

static int is_removed(uint16_t port) { return rte_eth_dev_is_removed(port); }

/* Frames that the port has dropped for want of memory or room. */
static uint64_t dropped(uint16_t port)
{
	struct rte_eth_stats stats = {0};

	(void)rte_eth_stats_get(port, &stats);
	return stats.imissed + stats.rx_nombuf;
}

static uint32_t judgement(const struct rte_mbuf *mbuf)
{
	uint64_t ip = mbuf->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK, udp = mbuf->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;

	if (ip == RTE_MBUF_F_RX_IP_CKSUM_BAD || udp == RTE_MBUF_F_RX_L4_CKSUM_BAD)
		return WRONG;
	return udp == RTE_MBUF_F_RX_L4_CKSUM_GOOD ? RIGHT : UNKNOWN;
}

static unsigned int receive(uint16_t port, struct frame *frames, unsigned int max)
{
	struct rte_mbuf *mbufs[BURST_MAX];
	unsigned int count, taken = 0;

	enter();
	count = rte_eth_rx_burst(port, 0, mbufs, RTE_MIN(max, (unsigned int)BURST_MAX));
	for (unsigned int place = 0; place < count; place++) {
		struct rte_mbuf *mbuf = mbufs[place];

		if (unlikely(mbuf->nb_segs > 1 && rte_pktmbuf_linearize(mbuf) != 0)) {
			rte_pktmbuf_free(mbuf);
			continue;
		}
		rte_prefetch0(rte_pktmbuf_mtod(mbuf, void *));
		frames[taken++] = (struct frame){mbuf, rte_pktmbuf_mtod(mbuf, uint8_t *), mbuf->data_len, 0,
						judgement(mbuf), 0};
	}
	return taken;
}

/* Returns true with all of the frames, or with none. */
static int allocate(struct frame *frames, unsigned int count)
{
	struct rte_mbuf *mbufs[BURST_MAX];

	enter();
	if (count > BURST_MAX || rte_pktmbuf_alloc_bulk(pool, mbufs, count) != 0)
		return 0;
	for (unsigned int place = 0; place < count; place++)
		frames[place] = (struct frame){mbufs[place], rte_pktmbuf_mtod(mbufs[place], uint8_t *), 0,
					       rte_pktmbuf_tailroom(mbufs[place]), UNKNOWN, 0};
	return 1;
}

static void complete_sum(struct rte_mbuf *mbuf, uint32_t ip_bytes)
{
	mbuf->l2_len = RTE_ETHER_HDR_LEN;
	mbuf->l3_len = ip_bytes;
	mbuf->l4_len = sizeof(struct rte_udp_hdr);
	mbuf->ol_flags |= RTE_MBUF_F_TX_UDP_CKSUM | (ip_bytes == 20 ? RTE_MBUF_F_TX_IPV4 : RTE_MBUF_F_TX_IPV6);
}

/* Sends the first frames, whose buffers then belong to the device, and returns their number. */
static unsigned int send_frames(uint16_t port, const struct frame *frames, unsigned int count)
{
	struct rte_mbuf *mbufs[BURST_MAX];

	count = RTE_MIN(count, (unsigned int)BURST_MAX);
	for (unsigned int place = 0; place < count; place++) {
		mbufs[place] = frames[place].mbuf;
		mbufs[place]->data_len = frames[place].bytes;
		mbufs[place]->pkt_len = frames[place].bytes;
		if (frames[place].ip_bytes != 0)
			complete_sum(mbufs[place], frames[place].ip_bytes);
	}
	return rte_eth_tx_burst(port, 0, mbufs, count);
}

static void release(const struct frame *frames, unsigned int count)
{
	for (unsigned int place = 0; place < count; place++)
		rte_pktmbuf_free(frames[place].mbuf);
}

const struct {
	uint32_t abi;
	uint32_t port_info_bytes;
	const char *(*version)(void);
	const char *(*last_error)(void);
	int (*start_eal)(int, char **);
	unsigned int (*list_ports)(uint16_t *, unsigned int);
	int (*describe)(uint16_t, struct port_info *);
	int (*prepare)(uint16_t, struct port_info *, unsigned int, uint16_t);
	int (*start)(uint16_t);
	void (*stop)(uint16_t);
	int (*is_up)(uint16_t);
	int (*is_removed)(uint16_t);
	uint64_t (*dropped)(uint16_t);
	void (*close_gate)(void);
	int (*is_held)(void);
	void (*open_gate)(void);
	unsigned int (*receive)(uint16_t, struct frame *, unsigned int);
	int (*allocate)(struct frame *, unsigned int);
	unsigned int (*send)(uint16_t, const struct frame *, unsigned int);
	void (*release)(const struct frame *, unsigned int);
} petrel_dpdk = {
	ABI, sizeof(struct port_info), rte_version, last_error, start_eal, list_ports, describe, prepare, start, stop, is_up,
	is_removed, dropped, close_gate, is_held, open_gate, receive, allocate, send_frames, release,
};
