// UDP at line rate over a leaf-spine in ns-3: reads a scenario, prints when last packets arrive.
//
// stdin: hosts leaves spines rate_bits_per_s delay_ps payload header, the number of flows, then
// source, destination, spine and packets of each. Flows of one leaf to one destination share a spine.
// stdout: seconds of each flow from its first packet's start, then the CPU seconds of the run.
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"

#include <ctime>
#include <iostream>
#include <map>
#include <vector>

using namespace ns3;

struct Flow {
    int source, destination, spine, packets;
    int sent = 0, received = 0;
    double end_s = -1;
    Ptr<Socket> out, in;
    Ipv4Address to;
};

static std::vector<Flow> flows;
static int payload;
static Time wire;

static void Send(int number) {
    Flow& flow = flows[number];
    flow.out->SendTo(Create<Packet>(payload), 0, InetSocketAddress(flow.to, 1000 + number));
    if (++flow.sent < flow.packets) {
        Simulator::Schedule(wire, &Send, number);
    }
}

static void Receive(int number, Ptr<Socket> socket) {
    while (socket->Recv()) {
        if (++flows[number].received == flows[number].packets) {
            flows[number].end_s = Simulator::Now().GetSeconds();
        }
    }
}

int main() {
    Time::SetResolution(Time::PS);
    int hosts, leaves, spines, header, count;
    uint64_t rate;
    int64_t delay_ps;
    std::cin >> hosts >> leaves >> spines >> rate >> delay_ps >> payload >> header >> count;
    flows.resize(count);
    for (Flow& flow : flows) {
        std::cin >> flow.source >> flow.destination >> flow.spine >> flow.packets;
    }
    wire = DataRate(rate).CalculateBytesTxTime(payload + header);

    NodeContainer nodes;
    nodes.Create(hosts + leaves + spines);
    InternetStackHelper stack;
    Ipv4StaticRoutingHelper routing;
    stack.SetRoutingHelper(routing);
    stack.Install(nodes);
    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", DataRateValue(DataRate(rate)));
    link.SetDeviceAttribute("Mtu", UintegerValue(9000));
    link.SetChannelAttribute("Delay", TimeValue(PicoSeconds(delay_ps)));
    link.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue("1000000p"));
    // Interface of (node, neighbour), and the neighbour's address on that link.
    std::map<std::pair<int, int>, uint32_t> interface;
    std::map<std::pair<int, int>, Ipv4Address> address;
    Ipv4AddressHelper addresses;
    addresses.SetBase("10.0.0.0", "255.255.255.252");
    auto join = [&](int one, int other) {
        auto devices = link.Install(nodes.Get(one), nodes.Get(other));
        auto pair = addresses.Assign(devices);
        addresses.NewNetwork();
        interface[{one, other}] = pair.Get(0).second;
        interface[{other, one}] = pair.Get(1).second;
        address[{one, other}] = pair.GetAddress(1);
        address[{other, one}] = pair.GetAddress(0);
    };
    int per_leaf = hosts / leaves;
    auto leaf_of = [&](int host) { return hosts + host / per_leaf; };
    for (int host = 0; host < hosts; ++host) {
        join(host, leaf_of(host));
    }
    for (int leaf = 0; leaf < leaves; ++leaf) {
        for (int spine = 0; spine < spines; ++spine) {
            join(hosts + leaf, hosts + leaves + spine);
        }
    }
    for (int number = 0; number < count; ++number) {
        Flow& flow = flows[number];
        int first = leaf_of(flow.source), last = leaf_of(flow.destination);
        std::vector<int> way = {flow.source, first};
        if (first != last) {
            way.push_back(hosts + leaves + flow.spine);
            way.push_back(last);
        }
        way.push_back(flow.destination);
        flow.to = address[{last, flow.destination}];
        for (size_t at = 0; at + 1 < way.size(); ++at) {
            auto table = routing.GetStaticRouting(nodes.Get(way[at])->GetObject<Ipv4>());
            table->AddHostRouteTo(flow.to, address[{way[at], way[at + 1]}],
                                  interface[{way[at], way[at + 1]}]);
        }
        auto udp = UdpSocketFactory::GetTypeId();
        flow.in = Socket::CreateSocket(nodes.Get(flow.destination), udp);
        flow.in->SetAttribute("RcvBufSize", UintegerValue(1u << 30));
        flow.in->Bind(InetSocketAddress(Ipv4Address::GetAny(), 1000 + number));
        flow.in->SetRecvCallback(MakeBoundCallback(&Receive, number));
        flow.out = Socket::CreateSocket(nodes.Get(flow.source), udp);
        flow.out->Bind();
        Simulator::Schedule(Seconds(0), &Send, number);
    }
    std::clock_t begin = std::clock();
    Simulator::Run();
    double cpu_s = double(std::clock() - begin) / CLOCKS_PER_SEC;
    std::cout.precision(15);
    for (const Flow& flow : flows) {
        std::cout << flow.end_s << "\n";
    }
    std::cout << cpu_s << std::endl;
    Simulator::Destroy();
}
