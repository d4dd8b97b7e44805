// UCX active messages, over shared memory (with single copies through the kernel for bulk requests)
// or over TCP. Both ends poll.

#include <ucp/api/ucp.h>

#include <memory>

#include "../cpp/peer.hpp"

namespace {

enum : unsigned { ECHO = 1, BULK = 2, REPLY = 3 };

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) throw std::runtime_error(std::string(what) + ": " + ucs_status_string(status));
}

// A send or a receive has ended, now or later. Its request is given back.
void done(void* request, ucs_status_t status, void*) {
  check(status, "transfer");
  ucp_request_free(request);
}

void received(void* request, ucs_status_t status, size_t, void* target);

struct Worker {
  ucp_context_h context;
  ucp_worker_h worker;

  explicit Worker(const std::string& variant) {
    if (variant != "shm" && variant != "tcp") {
      throw std::runtime_error("this peer has no variant " + variant);
    }
    setenv("UCX_TLS", variant.c_str(), 1);
    if (variant == "tcp") setenv("UCX_NET_DEVICES", "lo", 1);
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM;
    check(ucp_init(&params, nullptr, &context), "ucp_init");
    ucp_worker_params_t worker_params{};
    worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
    check(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
  }

  void handle(unsigned id, ucp_am_recv_callback_t handler, void* arg) {
    ucp_am_handler_param_t param{};
    param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
    param.id = id;
    param.cb = handler;
    param.arg = arg;
    param.flags = UCP_AM_FLAG_WHOLE_MSG;
    check(ucp_worker_set_am_recv_handler(worker, &param), "ucp_worker_set_am_recv_handler");
  }
};

void send(ucp_ep_h endpoint, unsigned id, const void* data, size_t length, unsigned flags) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = done;
  param.flags = flags;
  auto request = ucp_am_send_nbx(endpoint, id, nullptr, 0, data, length, &param);
  if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "ucp_am_send_nbx");
}

// ---- server ----

// Replies keep their memory until it is used again, long after the caller has them.
struct Server {
  static constexpr size_t REPLIES = 1024, BULKS = 8;

  explicit Server(const std::string& variant) : worker(variant) {}

  uint64_t (&next_reply())[4] { return replies[reply_count++ % REPLIES]; }

  Worker worker;
  peer::Reply replies[REPLIES];
  size_t reply_count = 0;

  // A bulk request that is being fetched.
  struct Target {
    Server* server = nullptr;
    ucp_ep_h reply_to = nullptr;
    size_t length = 0;
    bool is_busy = false;
    std::unique_ptr<uint8_t[]> memory;
  } targets[BULKS];

  void answer(ucp_ep_h reply_to, const uint8_t* request, size_t length) {
    auto& reply = next_reply();
    peer::sink(request, length, reply);
    send(reply_to, REPLY, reply, sizeof reply, 0);
  }

  Target& free_target() {
    for (auto& target : targets) {
      if (!target.is_busy) return target;
    }
    throw std::runtime_error("more bulk requests at a time than the server has memory for");
  }
};

ucs_status_t on_echo(void* arg, const void*, size_t, void* data, size_t length,
                     const ucp_am_recv_param_t* param) {
  auto server = static_cast<Server*>(arg);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) || length != peer::SMALL_BYTES) {
    throw std::runtime_error("a small request is not one");
  }
  auto& reply = server->next_reply();
  memcpy(reply, data, sizeof reply);
  send(param->reply_ep, REPLY, reply, sizeof reply, 0);
  return UCS_OK;
}

ucs_status_t on_bulk(void* arg, const void*, size_t, void* data, size_t length,
                     const ucp_am_recv_param_t* param) {
  auto server = static_cast<Server*>(arg);
  if (length > peer::BULK_BYTES) throw std::runtime_error("a request is too long");
  if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
    server->answer(param->reply_ep, static_cast<const uint8_t*>(data), length);
    return UCS_OK;
  }
  auto& target = server->free_target();
  if (!target.memory) target.memory.reset(new uint8_t[peer::BULK_BYTES]);
  target.server = server;
  target.reply_to = param->reply_ep;
  target.length = length;
  target.is_busy = true;
  ucp_request_param_t receive{};
  receive.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  receive.cb.recv_am = received;
  receive.user_data = &target;
  auto request =
      ucp_am_recv_data_nbx(server->worker.worker, data, target.memory.get(), length, &receive);
  if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "ucp_am_recv_data_nbx");
  if (request == nullptr) received(nullptr, UCS_OK, length, &target);
  return UCS_INPROGRESS;
}

void received(void* request, ucs_status_t status, size_t, void* user_data) {
  check(status, "bulk request");
  auto target = static_cast<Server::Target*>(user_data);
  target->is_busy = false;
  target->server->answer(target->reply_to, target->memory.get(), target->length);
  if (request != nullptr) ucp_request_free(request);
}

std::string to_hex(const uint8_t* bytes, size_t length) {
  std::string text;
  char digits[3];
  for (size_t at = 0; at < length; at++) {
    snprintf(digits, sizeof digits, "%02x", bytes[at]);
    text += digits;
  }
  return text;
}

void serve(const peer::Args& args) {
  auto server = std::make_unique<Server>(args.variant);
  server->worker.handle(ECHO, on_echo, server.get());
  server->worker.handle(BULK, on_bulk, server.get());
  ucp_address_t* address;
  size_t length;
  check(ucp_worker_get_address(server->worker.worker, &address, &length), "ucp_worker_get_address");
  peer::ready(to_hex(reinterpret_cast<const uint8_t*>(address), length));
  for (;;) ucp_worker_progress(server->worker.worker);
}

// ---- client ----

struct Client {
  // Small calls in flight by their numbers' last bits.
  static constexpr size_t PLACES = 1024;

  struct Lane {
    std::vector<uint8_t> memory;
    peer::Bulk bulk;
    uint64_t call = 0;
    Lane() : memory(peer::BULK_BYTES), bulk(memory.data()) {}
  };

  explicit Client(const peer::Args& args) : worker(args.variant), meter(args) {}

  Worker worker;
  peer::Meter meter;
  ucp_ep_h endpoint = nullptr;
  std::vector<std::unique_ptr<Lane>> lanes;
  uint64_t calls[PLACES] = {};
  peer::Reply requests[PLACES];

  void start_small() {
    uint64_t call = meter.begin();
    if (call == 0) return;
    size_t place = call % PLACES;
    if (calls[place] != 0) throw std::runtime_error("a call was overtaken by 1024 others");
    calls[place] = call;
    peer::small(call, requests[place]);
    send(endpoint, ECHO, requests[place], sizeof requests[place], UCP_AM_SEND_FLAG_REPLY);
  }

  void start_bulk(Lane& lane) {
    lane.call = meter.begin();
    if (lane.call == 0) return;
    lane.bulk.stamp(lane.call);
    send(endpoint, BULK, lane.memory.data(), lane.memory.size(), UCP_AM_SEND_FLAG_REPLY);
  }

  void on_reply(const void* reply, size_t length) {
    if (length != peer::REPLY_BYTES) throw std::runtime_error("a reply has a wrong length");
    uint64_t call = peer::call_of(reply);
    if (lanes.empty()) {
      if (call == 0 || calls[call % PLACES] != call) throw std::runtime_error("a reply to no call");
      calls[call % PLACES] = 0;
      meter.end(call, peer::is_small(call, reply, length));
      return start_small();
    }
    for (auto& lane : lanes) {
      if (lane->call != call) continue;
      meter.end(call, lane->bulk.is_reply(reply, length));
      return start_bulk(*lane);
    }
    throw std::runtime_error("a reply to no call");
  }
};

ucs_status_t on_reply(void* arg, const void*, size_t, void* data, size_t length,
                      const ucp_am_recv_param_t*) {
  static_cast<Client*>(arg)->on_reply(data, length);
  return UCS_OK;
}

std::vector<uint8_t> from_hex(const std::string& text) {
  std::vector<uint8_t> bytes;
  for (size_t at = 0; at + 1 < text.size(); at += 2) {
    bytes.push_back(uint8_t(std::stoi(text.substr(at, 2), nullptr, 16)));
  }
  return bytes;
}

void call(const peer::Args& args) {
  auto client = std::make_unique<Client>(args);
  client->worker.handle(REPLY, on_reply, client.get());
  auto address = from_hex(args.address);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  check(ucp_ep_create(client->worker.worker, &params, &client->endpoint), "ucp_ep_create");
  for (size_t lane = 0; args.is_bulk && lane < args.in_flight; lane++) {
    client->lanes.push_back(std::make_unique<Client::Lane>());
  }
  for (auto& lane : client->lanes) client->start_bulk(*lane);
  for (size_t lane = 0; !args.is_bulk && lane < args.in_flight; lane++) client->start_small();
  while (client->meter.in_flight() > 0) ucp_worker_progress(client->worker.worker);
  client->meter.print(ucp_get_version_string());
}

}  // namespace

int main(int argc, char** argv) { return peer::run(argc, argv, serve, call); }
