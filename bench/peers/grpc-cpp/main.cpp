// gRPC C++, unary calls over one connection without TLS. The server answers in callbacks, the
// client drives a completion queue; all threads of an end share its CPU.

#include <grpcpp/grpcpp.h>

#include <memory>

#include "../cpp/peer.hpp"
#include "bench.grpc.pb.h"

namespace {

class Service final : public bench::Bench::CallbackService {
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context,
                                 const bench::Payload* request, bench::Payload* reply) override {
    reply->set_data(request->data());
    return finish(context);
  }

  grpc::ServerUnaryReactor* Bulk(grpc::CallbackServerContext* context,
                                 const bench::Payload* request, bench::Payload* reply) override {
    peer::Reply proof;
    auto& data = request->data();
    peer::sink(reinterpret_cast<const uint8_t*>(data.data()), data.size(), proof);
    reply->set_data(proof, sizeof proof);
    return finish(context);
  }

  grpc::ServerUnaryReactor* finish(grpc::CallbackServerContext* context) {
    auto reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

void serve(const peer::Args&) {
  Service service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  if (!server) throw std::runtime_error("the server does not start");
  peer::ready("127.0.0.1:" + std::to_string(port));
  server->Wait();
}

// A call in flight at a time. Its messages are used again.
struct Lane {
  uint64_t call = 0;
  bench::Payload request, reply;
  std::unique_ptr<peer::Bulk> bulk;
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientAsyncResponseReader<bench::Payload>> reader;
  grpc::Status status;
};

class Client {
 public:
  explicit Client(const peer::Args& args) : meter_(args) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxSendMessageSize(-1);
    auto channel =
        grpc::CreateCustomChannel(args.address, grpc::InsecureChannelCredentials(), arguments);
    stub_ = bench::Bench::NewStub(channel);
    for (size_t index = 0; index < args.in_flight; index++) {
      lanes_.push_back(std::make_unique<Lane>());
      if (args.is_bulk) prepare(*lanes_.back());
    }
  }

  void run() {
    for (auto& lane : lanes_) start(*lane);
    void* tag;
    bool is_ok;
    while (meter_.in_flight() > 0 && queue_.Next(&tag, &is_ok)) end(*static_cast<Lane*>(tag));
    meter_.print(grpc::Version());
  }

 private:
  void prepare(Lane& lane) {
    auto data = lane.request.mutable_data();
    data->resize(peer::BULK_BYTES);
    lane.bulk = std::make_unique<peer::Bulk>(reinterpret_cast<uint8_t*>(data->data()));
  }

  void start(Lane& lane) {
    lane.call = meter_.begin();
    if (lane.call == 0) return;
    lane.context = std::make_unique<grpc::ClientContext>();
    if (lane.bulk) {
      lane.bulk->stamp(lane.call);
      lane.reader = stub_->AsyncBulk(lane.context.get(), lane.request, &queue_);
    } else {
      peer::Reply request;
      peer::small(lane.call, request);
      lane.request.set_data(request, sizeof request);
      lane.reader = stub_->AsyncEcho(lane.context.get(), lane.request, &queue_);
    }
    lane.reader->Finish(&lane.reply, &lane.status, &lane);
  }

  void end(Lane& lane) {
    if (!lane.status.ok()) throw std::runtime_error(lane.status.error_message());
    auto& reply = lane.reply.data();
    meter_.end(lane.call, lane.bulk ? lane.bulk->is_reply(reply.data(), reply.size())
                                    : peer::is_small(lane.call, reply.data(), reply.size()));
    start(lane);
  }

  peer::Meter meter_;
  std::unique_ptr<bench::Bench::Stub> stub_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

void call(const peer::Args& args) { Client(args).run(); }

}  // namespace

int main(int argc, char** argv) { return peer::run(argc, argv, serve, call); }
