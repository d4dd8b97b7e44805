// Command etcd measures replicated puts with etcd: three nodes on this machine with their data in memory, and
// one client process, as `petrel bench kv` does with Petrel's replicas. It prints one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

type row struct {
	Clients   int     `json:"clients"`
	Puts      int     `json:"puts"`
	PutsPerS  float64 `json:"puts_per_s"`
	P50us     float64 `json:"p50_us"`
	P99us     float64 `json:"p99_us"`
	Keys      int     `json:"keys"`
	KeyBytes  int     `json:"key_bytes"`
	ValueByte int     `json:"value_bytes"`
}

var (
	etcd     = flag.String("etcd", "etcd", "the server's program")
	data     = flag.String("data", "/dev/shm", "directory for the nodes' data: a file system in memory")
	keys     = flag.Int("keys", 1_000_000, "keys that puts choose from")
	duration = flag.Duration("duration", 5*time.Second, "time for each row")
	clients  = flag.String("clients", "1,64", "numbers of clients, each with one put under way")
	cpus     = flag.String("cpus", "", "CPUs of the three nodes, such as 1,1,1; empty: any")
	wrap     = flag.String("wrap", "", "command that starts the nodes, such as \"chrt -r 10\"")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	dir, err := os.MkdirTemp(*data, "petrel-bench-etcd-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	nodes, endpoints, err := startNodes(dir)
	defer func() {
		for _, node := range nodes {
			_ = node.Process.Kill()
			_ = node.Wait()
		}
	}()
	if err != nil {
		return err
	}
	if err := waitForLeader(endpoints); err != nil {
		return err
	}
	var rows []row
	for _, field := range strings.Split(*clients, ",") {
		var count int
		if _, err := fmt.Sscan(field, &count); err != nil {
			return fmt.Errorf("-clients: %w", err)
		}
		row, err := measure(endpoints, count)
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	return json.NewEncoder(os.Stdout).Encode(rows)
}

func startNodes(dir string) ([]*exec.Cmd, []string, error) {
	var cluster, endpoints []string
	for node := 1; node <= 3; node++ {
		cluster = append(cluster, fmt.Sprintf("n%d=http://127.0.0.1:%d", node, 42380+node))
		endpoints = append(endpoints, fmt.Sprintf("127.0.0.1:%d", 42370+node))
	}
	var nodes []*exec.Cmd
	var err error
	for node := 1; node <= 3; node++ {
		client, peer := fmt.Sprintf("http://127.0.0.1:%d", 42370+node), fmt.Sprintf("http://127.0.0.1:%d", 42380+node)
		arguments := append(prefix(node), *etcd, "--name", fmt.Sprintf("n%d", node),
			"--data-dir", filepath.Join(dir, fmt.Sprint(node)),
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new",
			"--log-level", "error", "--quota-backend-bytes", "8589934592")
		command := exec.Command(arguments[0], arguments[1:]...)
		command.Stderr, err = os.Create(filepath.Join(dir, fmt.Sprintf("%d.log", node)))
		if err != nil {
			return nodes, nil, err
		}
		if err := command.Start(); err != nil {
			return nodes, nil, err
		}
		nodes = append(nodes, command)
	}
	return nodes, endpoints, nil
}

// prefix is the command that starts a node where it should run.
func prefix(node int) []string {
	arguments := strings.Fields(*wrap)
	if *cpus != "" {
		arguments = append(arguments, "taskset", "-c", strings.Split(*cpus, ",")[node-1])
	}
	return arguments
}

func connect(endpoints []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second})
}

// waitForLeader puts once, and finds the leader, to which the clients will talk.
func waitForLeader(endpoints []string) error {
	client, err := connect(endpoints)
	if err != nil {
		return err
	}
	defer client.Close()
	end := time.Now().Add(30 * time.Second)
	for {
		context, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := client.Put(context, "begin", "now")
		cancel()
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the nodes do not serve: %w", err)
		}
	}
}

func leaderOf(endpoints []string) (string, error) {
	client, err := connect(endpoints)
	if err != nil {
		return "", err
	}
	defer client.Close()
	for _, endpoint := range endpoints {
		status, err := client.Status(context.Background(), endpoint)
		if err == nil && status.Header.MemberId == status.Leader {
			return endpoint, nil
		}
	}
	return "", fmt.Errorf("nobody leads")
}

// measure has each client put one value after the other, on a connection of its own.
func measure(endpoints []string, count int) (row, error) {
	leader, err := leaderOf(endpoints)
	if err != nil {
		return row{}, err
	}
	var group sync.WaitGroup
	latencies := make([][]time.Duration, count)
	failures := make(chan error, count)
	begin := time.Now()
	for number := range count {
		group.Add(1)
		go func() {
			defer group.Done()
			client, err := connect([]string{leader})
			if err != nil {
				failures <- err
				return
			}
			defer client.Close()
			latencies[number], err = puts(client, number, begin.Add(*duration))
			if err != nil {
				failures <- err
			}
		}()
	}
	group.Wait()
	elapsed := time.Since(begin)
	select {
	case err := <-failures:
		return row{}, err
	default:
	}
	var all []time.Duration
	for _, one := range latencies {
		all = append(all, one...)
	}
	sort.Slice(all, func(a, b int) bool { return all[a] < all[b] })
	micros := func(quantile float64) float64 {
		return float64(all[int(quantile*float64(len(all)-1))].Nanoseconds()) / 1000
	}
	return row{count, len(all), float64(len(all)) / elapsed.Seconds(), micros(0.5), micros(0.99), *keys, 16, 64}, nil
}

func puts(client *clientv3.Client, number int, end time.Time) ([]time.Duration, error) {
	random := rand.New(rand.NewSource(int64(number)))
	value := strings.Repeat("v", 64)
	var latencies []time.Duration
	for time.Now().Before(end) {
		key := fmt.Sprintf("%016d", random.Intn(*keys))
		begin := time.Now()
		reply, err := client.Put(context.Background(), key, value)
		if err != nil {
			return nil, err
		}
		if reply.Header.Revision == 0 {
			return nil, fmt.Errorf("a put was answered without a revision")
		}
		latencies = append(latencies, time.Since(begin))
	}
	return latencies, nil
}
