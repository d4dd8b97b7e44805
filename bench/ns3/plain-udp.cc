// The scenarios of Petrel's `examples/plain_udp.rs`, on ns-3: plain UDP packets over store-and-forward
// routers with drop-tail queues. Prints the same table. See README.md.
//
// ns-3 is under GPL-2.0-only. This file uses it as a program of its own, for comparison; nothing of
// Petrel is linked to it, and nothing of it is in Petrel.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

using namespace ns3;

namespace {

constexpr uint32_t kPayloadBytes = 1000;
// PPP 2, IPv4 20, UDP 8.
constexpr uint32_t kWireBytes = kPayloadBytes + 30;
constexpr uint32_t kSwitchQueuePackets = 30;
constexpr uint64_t kLinkBps = 10'000'000'000;
constexpr uint16_t kPort = 9;
const Time kDelay = NanoSeconds(1000);
const Time kWarmUp = MilliSeconds(2);
const Time kStop = MilliSeconds(22);
const Time kDrained = MilliSeconds(24);

enum class Network { kStar, kTiers };
enum class Pattern { kPoisson, kOnOff };

struct Scenario
{
  const char* name;
  Network network;
  Pattern pattern;
  // Of the busiest link: the one port in the star, each host's link in two tiers.
  double load;
};

struct Result
{
  double mean_us, p99_us, dropped_percent;
};

// What one run measures.
struct Tally
{
  uint64_t sent = 0;
  std::vector<double> delays_us;
};

// Sends packets that carry the time at which they were sent.
class Source
{
public:
  Source(Ptr<Node> node, std::vector<Ipv4Address> targets, Pattern pattern, double rate_pps, Tally& tally)
      : targets_(std::move(targets)), pattern_(pattern), tally_(tally)
  {
    socket_ = Socket::CreateSocket(node, UdpSocketFactory::GetTypeId());
    socket_->Bind();
    pick_ = CreateObject<UniformRandomVariable>();
    exponential_ = CreateObject<ExponentialRandomVariable>();
    mean_gap_s_ = 1.0 / rate_pps;
    // Bursts at half the rate of the link, 20 packets on average; silence makes up the rest.
    burst_gap_s_ = 2.0 * kWireBytes * 8 / kLinkBps;
    on_s_ = 20 * burst_gap_s_;
    off_s_ = on_s_ * (mean_gap_s_ / burst_gap_s_ - 1);
    Simulator::Schedule(pattern == Pattern::kPoisson ? Draw(mean_gap_s_) : NextBurst(), &Source::Send, this);
  }

private:
  Time Draw(double mean_s) { return Seconds(exponential_->GetValue(mean_s, 0)); }

  // How long until the next burst begins, which is drawn too.
  Time NextBurst()
  {
    Time silence = Draw(off_s_);
    burst_until_ = Simulator::Now() + silence + Draw(on_s_);
    return silence;
  }

  Time NextGap()
  {
    if (pattern_ == Pattern::kPoisson) return Draw(mean_gap_s_);
    Time gap = Seconds(burst_gap_s_);
    if (Simulator::Now() + gap < burst_until_) return gap;
    Time left = burst_until_ - Simulator::Now();
    Time silence = Draw(off_s_);
    burst_until_ = burst_until_ + silence + Draw(on_s_);
    return left + silence;
  }

  void Send()
  {
    if (Simulator::Now() >= kStop) return;
    int64_t now_ps = Simulator::Now().GetPicoSeconds();
    std::vector<uint8_t> bytes(kPayloadBytes);
    std::copy_n(reinterpret_cast<uint8_t*>(&now_ps), sizeof now_ps, bytes.begin());
    Ipv4Address to = targets_[pick_->GetInteger(0, targets_.size() - 1)];
    socket_->SendTo(Create<Packet>(bytes.data(), bytes.size()), 0, InetSocketAddress(to, kPort));
    if (Simulator::Now() >= kWarmUp) tally_.sent++;
    Simulator::Schedule(NextGap(), &Source::Send, this);
  }

  std::vector<Ipv4Address> targets_;
  Pattern pattern_;
  Tally& tally_;
  Ptr<Socket> socket_;
  Ptr<UniformRandomVariable> pick_;
  Ptr<ExponentialRandomVariable> exponential_;
  double mean_gap_s_, burst_gap_s_, on_s_, off_s_;
  Time burst_until_;
};

void Receive(Tally* tally, Ptr<Socket> socket)
{
  while (Ptr<Packet> packet = socket->Recv())
  {
    int64_t sent_ps = 0;
    packet->CopyData(reinterpret_cast<uint8_t*>(&sent_ps), sizeof sent_ps);
    int64_t delay_ps = Simulator::Now().GetPicoSeconds() - sent_ps;
    if (PicoSeconds(sent_ps) >= kWarmUp) tally->delays_us.push_back(delay_ps / 1e6);
  }
}

// Joins two nodes. Hosts have queues that are never full, switches short ones.
class Builder
{
public:
  Builder() { addresses_.SetBase("10.0.0.0", "255.255.255.252"); }

  Ipv4Address Join(Ptr<Node> a, bool a_is_host, Ptr<Node> b, uint64_t bps)
  {
    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", DataRateValue(DataRate(bps)));
    link.SetChannelAttribute("Delay", TimeValue(kDelay));
    NetDeviceContainer devices = link.Install(a, b);
    SetQueue(devices.Get(0), a_is_host ? 10'000'000 : kSwitchQueuePackets);
    SetQueue(devices.Get(1), kSwitchQueuePackets);
    Ipv4InterfaceContainer interfaces = addresses_.Assign(devices);
    addresses_.NewNetwork();
    // Without a queueing discipline above the device, its queue is the only one.
    TrafficControlHelper().Uninstall(devices);
    return interfaces.GetAddress(0);
  }

private:
  static void SetQueue(Ptr<NetDevice> device, uint32_t packets)
  {
    auto queue = CreateObject<DropTailQueue<Packet>>();
    queue->SetMaxSize(QueueSize(QueueSizeUnit::PACKETS, packets));
    DynamicCast<PointToPointNetDevice>(device)->SetQueue(queue);
  }

  Ipv4AddressHelper addresses_;
};

Result Run(const Scenario& scenario, uint32_t run)
{
  RngSeedManager::SetRun(run + 1);
  const bool is_star = scenario.network == Network::kStar;
  const uint32_t host_count = is_star ? 17 : 16;
  NodeContainer hosts, switches;
  hosts.Create(host_count);
  switches.Create(is_star ? 1 : 5);
  InternetStackHelper stack;
  stack.Install(hosts);
  stack.Install(switches);
  Builder builder;
  std::vector<Ipv4Address> addresses;
  for (uint32_t host = 0; host < host_count; host++)
    addresses.push_back(builder.Join(hosts.Get(host), true, switches.Get(is_star ? 0 : host / 4), kLinkBps));
  // Four hosts under each leaf, and an uplink of twice a host's link: 2:1.
  for (uint32_t leaf = 0; !is_star && leaf < 4; leaf++)
    builder.Join(switches.Get(leaf), false, switches.Get(4), 2 * kLinkBps);
  Ipv4GlobalRoutingHelper::PopulateRoutingTables();

  Tally tally;
  std::vector<Source*> sources;
  const double link_pps = kLinkBps / (kWireBytes * 8.0);
  const double rate_pps = scenario.load * link_pps / (is_star ? 16 : 1);
  for (uint32_t host = 0; host < host_count; host++)
  {
    Ptr<Socket> sink = Socket::CreateSocket(hosts.Get(host), UdpSocketFactory::GetTypeId());
    sink->Bind(InetSocketAddress(Ipv4Address::GetAny(), kPort));
    sink->SetRecvCallback(MakeBoundCallback(&Receive, &tally));
    if (is_star && host == 16) continue;
    std::vector<Ipv4Address> targets = addresses;
    if (is_star)
      targets = {addresses[16]};
    else
      targets.erase(targets.begin() + host);
    sources.push_back(new Source(hosts.Get(host), targets, scenario.pattern, rate_pps, tally));
  }
  Simulator::Stop(kDrained);
  Simulator::Run();
  Simulator::Destroy();
  for (Source* source : sources) delete source;

  std::vector<double>& delays = tally.delays_us;
  std::sort(delays.begin(), delays.end());
  double sum = 0;
  for (double delay : delays) sum += delay;
  const double dropped = 100.0 * (tally.sent - delays.size()) / tally.sent;
  const size_t p99 = static_cast<size_t>(std::ceil(0.99 * delays.size())) - 1;
  return {sum / delays.size(), delays[p99], dropped};
}

// The average of the runs, and the standard error of that average.
void PrintMean(const std::vector<Result>& results, double Result::*field)
{
  double sum = 0, squares = 0;
  const double count = results.size();
  for (const Result& result : results) sum += result.*field;
  for (const Result& result : results) squares += std::pow(result.*field - sum / count, 2);
  std::printf(" %8.3f ± %.3f |", sum / count, std::sqrt(squares / (count - 1) / count));
}

}  // namespace

int main(int argc, char** argv)
{
  const uint32_t runs = argc > 1 ? std::max(2, std::atoi(argv[1])) : 10;
  Time::SetResolution(Time::PS);
  const std::vector<Scenario> scenarios = {
      {"star, Poisson, 0.50", Network::kStar, Pattern::kPoisson, 0.50},
      {"star, Poisson, 0.80", Network::kStar, Pattern::kPoisson, 0.80},
      {"star, Poisson, 0.95", Network::kStar, Pattern::kPoisson, 0.95},
      {"star, on/off, 0.50", Network::kStar, Pattern::kOnOff, 0.50},
      {"star, on/off, 0.80", Network::kStar, Pattern::kOnOff, 0.80},
      {"two tiers, Poisson, 0.40", Network::kTiers, Pattern::kPoisson, 0.40},
      {"two tiers, Poisson, 0.60", Network::kTiers, Pattern::kPoisson, 0.60},
      {"two tiers, on/off, 0.40", Network::kTiers, Pattern::kOnOff, 0.40},
  };
  std::printf("| scenario, load | mean µs | p99 µs | dropped %% |\n| --- | --- | --- | --- |\n");
  for (const Scenario& scenario : scenarios)
  {
    std::vector<Result> results;
    for (uint32_t run = 0; run < runs; run++) results.push_back(Run(scenario, run));
    std::printf("| %s |", scenario.name);
    PrintMean(results, &Result::mean_us);
    PrintMean(results, &Result::p99_us);
    PrintMean(results, &Result::dropped_percent);
    std::printf("\n");
    std::fflush(stdout);
  }
}
