//! Shared parts of the Kubernetes tests: hosts with a daemon each on one API server, and echo pods for real clusters.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{
    ApiClient, ApiServer, Families, Flanneld, FlanneldOptions, Host, Lab, NodeObject, PingMatrix,
    Pod, Proxy, Uplink, throughout, until_ok,
};

/// Less than a minute. After a minute, a node that cannot reach the API is not ready, and a Node without flannel's mark is not a peer.
pub(super) const MOST_OF_A_MINUTE: Duration = Duration::from_secs(50);

pub(super) const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
pub(super) const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:244::/48","Backend":{"Type":"vxlan"}}"#;
pub(super) const V6_ONLY: &str = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd10:244::/48","Backend":{"Type":"vxlan"}}"#;

/// The API server of a test that runs on both. The contract of `subnet-lease` shows that the fake answers as the real one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Real,
    Fake,
}

impl Server {
    fn start(self, host: &Host) -> Result<ApiServer> {
        match self {
            Server::Real => ApiServer::start(host, Families::Dual),
            Server::Fake => ApiServer::fake(host, Families::Dual),
        }
    }

    /// Starts hosts that have neither Nodes nor daemons.
    pub(super) fn empty(self, lab: &Lab, hosts: u8, net_conf: &str) -> Result<Bed> {
        Bed::with(lab, hosts, net_conf, |host| self.start(host))
    }

    /// Starts hosts with a Node, a ready daemon and a pod each, and waits until all pods reach each other.
    pub(super) fn populated(self, lab: &Lab, hosts: u8, net_conf: &str) -> Result<Bed> {
        let mut bed = self.empty(lab, hosts, net_conf)?;
        bed.populate()?;
        Ok(bed)
    }
}

/// Hosts `h1`, `h2`, … on one switch, and two proxies through which the hosts reach an API server. Rust drops the fields in the order of their declaration.
pub(super) struct Bed {
    pub(super) daemons: Vec<Flanneld>,
    pub(super) options: Vec<FlanneldOptions>,
    pub(super) pods: Vec<Pod>,
    /// The daemons use the first proxy. The second proxy is the next address in `--kube-api-url`.
    pub(super) proxies: [Proxy; 2],
    pub(super) api: ApiServer,
    pub(super) hosts: Vec<Host>,
    pub(super) net_conf: PathBuf,
}

impl Bed {
    /// Starts hosts that have neither Nodes nor daemons.
    pub(super) fn empty(lab: &Lab, hosts: u8, net_conf: &str) -> Result<Bed> {
        Server::Real.empty(lab, hosts, net_conf)
    }

    /// Starts hosts that have neither Nodes nor daemons, with an API server that `start` starts.
    pub(super) fn with(
        lab: &Lab,
        hosts: u8,
        net_conf: &str,
        start: impl Fn(&Host) -> Result<ApiServer>,
    ) -> Result<Bed> {
        let lan = lab.switch("lan")?;
        let machine = lab.host(
            "api",
            &[Uplink::enp0s8(&lan, 99)?
                .gateway("192.168.56.254")?
                .gateway("fd00:56::254")?],
        )?;
        let api = start(&machine)?;
        let uplink = |number| {
            Uplink::enp0s8(&lan, number)?
                .gateway("192.168.56.199")?
                .gateway("fd00:56::199")
        };
        let hosts = (1..=hosts)
            .map(|number| lab.host(&format!("h{number}"), &[uplink(number)?]))
            .collect::<Result<Vec<_>>>()?;
        Bed::on(lab, api, hosts, net_conf)
    }

    /// Builds the test environment from `hosts`, with an API server on `machine`.
    pub(super) fn of(
        lab: &Lab,
        machine: &Host,
        families: Families,
        hosts: Vec<Host>,
        net_conf: &str,
    ) -> Result<Bed> {
        Bed::on(lab, ApiServer::start(machine, families)?, hosts, net_conf)
    }

    fn on(lab: &Lab, api: ApiServer, hosts: Vec<Host>, net_conf: &str) -> Result<Bed> {
        let file = lab.folder("")?.join("net-conf.json");
        std::fs::write(&file, net_conf)?;
        let proxies = [api.proxy(8001)?, api.proxy(8002)?];
        let options = hosts
            .iter()
            .map(|host| options(host, &file, &proxies))
            .collect();
        Ok(Bed {
            daemons: Vec::new(),
            options,
            pods: Vec::new(),
            proxies,
            api,
            hosts,
            net_conf: file,
        })
    }

    /// Starts hosts with a Node, a ready daemon and a pod each, and waits until all pods reach each other.
    pub(super) fn start(lab: &Lab, hosts: u8, net_conf: &str) -> Result<Bed> {
        Server::Real.populated(lab, hosts, net_conf)
    }

    /// Creates a Node, a ready daemon and a pod for each host, and waits until all pods reach each other.
    pub(super) fn populate(&mut self) -> Result<()> {
        for number in 1..=self.hosts.len() {
            self.admin().create_node(&self.node(number))?;
        }
        self.start_daemons()?;
        self.start_pods()?;
        self.reach()
    }

    /// Returns the Node of host `number`, with both address families. The first host has the number 1.
    pub(super) fn node(&self, number: usize) -> NodeObject {
        let address =
            |v6: &str, v4: &str| -> [IpAddr; 2] { [v4.parse().unwrap(), v6.parse().unwrap()] };
        let [v4, v6] = address(
            &format!("fd00:56::{}", number + 100),
            &format!("192.168.56.{}", number + 100),
        );
        NodeObject::new(&format!("h{number}"))
            .pod_cidr(&format!("10.244.{number}.0/24"))
            .pod_cidr(&format!("fd10:244:0:{number}::/64"))
            .internal(v4)
            .internal(v6)
    }

    pub(super) fn start_daemons(&mut self) -> Result<()> {
        self.daemons = self
            .hosts
            .iter()
            .zip(&self.options)
            .map(|(host, options)| host.start_flanneld(options))
            .collect::<Result<_>>()?;
        self.daemons
            .iter_mut()
            .try_for_each(|daemon| daemon.wait_ready().map(drop))
    }

    pub(super) fn start_pods(&mut self) -> Result<()> {
        let pods = self
            .hosts
            .iter()
            .zip(&self.daemons)
            .map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?));
        self.pods = pods.collect::<Result<_>>()?;
        Ok(())
    }

    pub(super) fn admin(&self) -> ApiClient {
        self.api.admin()
    }

    /// Waits until all pods reach each other in the address families that all pods have.
    pub(super) fn reach(&self) -> Result<()> {
        let addresses: Vec<Vec<IpAddr>> = self.pods.iter().map(Pod::addresses).collect();
        for family in 0..addresses.iter().map(Vec::len).min().unwrap_or(0) {
            let targets = addresses
                .iter()
                .map(|list| list.get(family).copied().context("an address"))
                .collect::<Result<Vec<_>>>()?;
            until_ok("pods reach each other", || {
                PingMatrix::to(&self.pods, &targets, &lab::PingOptions::default())?
                    .require_complete()
            })?;
        }
        Ok(())
    }

    /// Returns the underlay address to which a host's `flannel.1` sends packets for a subnet, from the FDB entry.
    pub(super) fn tunnel(&self, host: usize, subnet: &str) -> Result<Option<String>> {
        let netns = self.hosts[host].netns();
        let routes = netns.exec("ip", &["route", "show", "exact", subnet])?;
        let Some(gateway) = routes
            .lines()
            .find(|line| line.contains("dev flannel.1"))
            .and_then(|line| {
                line.split_whitespace()
                    .skip_while(|word| *word != "via")
                    .nth(1)
            })
        else {
            return Ok(None);
        };
        let neighbours = netns.exec("ip", &["neighbour", "show", "dev", "flannel.1"])?;
        let mac = neighbours
            .lines()
            .find(|line| line.split_whitespace().next() == Some(gateway))
            .and_then(|line| line.split_whitespace().nth(2));
        let Some(mac) = mac else { return Ok(None) };
        let fdb = netns.exec("bridge", &["fdb", "show", "dev", "flannel.1"])?;
        let entry = fdb
            .lines()
            .find(|line| line.starts_with(mac))
            .and_then(|line| {
                line.split_whitespace()
                    .skip_while(|word| *word != "dst")
                    .nth(1)
            });
        Ok(entry.map(str::to_owned))
    }

    /// Waits until a host sends packets for a subnet to the address `to`, or to no address if `to` is `None`.
    pub(super) fn wait_tunnel(&self, host: usize, subnet: &str, to: Option<&str>) -> Result<()> {
        until_ok(
            &format!("h{} sends what is for {subnet} to {to:?}", host + 1),
            || {
                let found = self.tunnel(host, subnet)?;
                ensure!(found.as_deref() == to, "it sends it to {found:?}");
                Ok(())
            },
        )
    }

    /// Returns a host's routes, neighbours and FDB entries for its peers, as sorted text.
    pub(super) fn peers_of(&self, host: usize) -> Result<String> {
        let netns = self.hosts[host].netns();
        let mut lines = Vec::new();
        for (program, args) in [
            ("ip", "route show dev flannel.1"),
            ("ip", "neighbour show dev flannel.1"),
            ("bridge", "fdb show dev flannel.1"),
        ] {
            let text = netns.exec(program, &args.split(' ').collect::<Vec<_>>())?;
            lines.extend(
                text.lines()
                    .map(|line| line.trim().to_owned())
                    .filter(|line| !line.contains("fe80::")),
            );
        }
        lines.sort();
        Ok(lines.join("\n"))
    }

    /// Returns a host's routes, neighbours and FDB entries for the other hosts of the test environment, without peers that a test created.
    pub(super) fn hosts_of(&self, host: usize) -> Result<String> {
        let peers = self.peers_of(host)?;
        let others = (1..=self.hosts.len()).filter(|number| *number != host + 1);
        let names: Vec<[String; 2]> = others
            .map(|number| {
                [
                    format!("10.244.{number}.0"),
                    format!("192.168.56.{}", number + 100),
                ]
            })
            .collect();
        Ok(peers
            .lines()
            .filter(|line| {
                names
                    .iter()
                    .flatten()
                    .any(|name| line.contains(name.as_str()))
            })
            .map(|line| format!("{line}\n"))
            .collect())
    }

    /// Checks that every host currently applies changes of Nodes: creates a new peer, and waits until each host sends packets to the peer.
    ///
    /// The function deletes the peer afterwards. The peer's kernel objects may stay for a minute, because daemons delay removals by a minute after an outage.
    pub(super) fn require_alive(&self) -> Result<()> {
        self.with_canary(|subnet, public| {
            (0..self.hosts.len()).try_for_each(|host| self.wait_tunnel(host, subnet, Some(public)))
        })
    }

    /// Checks that no host currently applies changes of Nodes.
    pub(super) fn require_unseen(&self) -> Result<()> {
        self.with_canary(|subnet, _| {
            throughout(Duration::from_secs(3), "the new peer is not seen", || {
                (0..self.hosts.len()).try_for_each(|host| {
                    ensure!(self.tunnel(host, subnet)?.is_none(), "h{} saw it", host + 1);
                    Ok(())
                })
            })
        })
    }

    /// Creates a peer with its own subnet and address, and runs `work` while the peer exists.
    fn with_canary(&self, work: impl FnOnce(&str, &str) -> Result<()>) -> Result<()> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = 100 + NUMBER.fetch_add(1, Ordering::Relaxed) % 100;
        let (name, subnet, public) = (
            format!("canary-{number}"),
            format!("10.244.{number}.0/24"),
            format!("192.168.57.{number}"),
        );
        let mac = format!("02:00:00:00:02:{:02x}", number);
        self.admin().create_node(
            &NodeObject::new(&name)
                .pod_cidr(&subnet)
                .vxlan_peer(&public, &mac),
        )?;
        let outcome = work(&subnet, &public);
        self.admin().delete_node(&name)?;
        outcome
    }

    /// Starts a host's daemon again after the earlier daemon ended, and waits until the new daemon is ready.
    pub(super) fn restart(&mut self, host: usize) -> Result<()> {
        self.daemons[host] = self.hosts[host].start_flanneld(&self.options[host])?;
        self.daemons[host].wait_ready().map(drop)
    }

    /// Runs the scenarios one after the other. Checks that no daemon ends or panics, and that all pods reach each other after each scenario.
    pub(super) fn each(&mut self, scenarios: &[(&str, Scenario)]) -> Result<()> {
        for (name, scenario) in scenarios {
            let pids: Vec<u32> = self.daemons.iter().map(|daemon| daemon.pid()).collect();
            let start = Instant::now();
            let outcome = scenario(self).and_then(|()| {
                self.proxies.iter().for_each(Proxy::pass);
                self.reach().context("afterwards")?;
                for (daemon, pid) in self.daemons.iter_mut().zip(pids) {
                    ensure!(daemon.is_running() && daemon.pid() == pid, "a daemon ended");
                    ensure!(!daemon.log().contains("panicked at"), "a daemon panicked");
                }
                Ok(())
            });
            println!("{name}: {:.1?}", start.elapsed());
            outcome.with_context(|| (*name).to_owned())?;
        }
        Ok(())
    }
}

/// Checks a condition that must hold for a minute after `start`. Ignores the result if the minute is almost over when `look` returns.
pub(super) fn within_a_minute(start: Instant, look: impl FnOnce() -> Result<()>) -> Result<()> {
    let outcome = look();
    if start.elapsed() < MOST_OF_A_MINUTE {
        outcome
    } else {
        Ok(())
    }
}

/// Function that runs one scenario of a table.
pub(super) type Scenario = fn(&mut Bed) -> Result<()>;

/// Returns the options of a host's daemon.
pub(super) fn options(
    host: &Host,
    net_conf: &std::path::Path,
    proxies: &[Proxy; 2],
) -> FlanneldOptions {
    FlanneldOptions::kube(host.name(), net_conf).arg(&format!(
        "--kube-api-url={},{}",
        proxies[0].url(),
        proxies[1].url()
    ))
}

/// Returns a pod on a node. The pod replies to each TCP connection on port 8080 with its own name. The hostPort 8090 also leads to the pod.
pub(super) fn echo_pod(name: &str, node: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: echo}}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  tolerations: [{{operator: Exists}}]
  containers:
  - name: echo
    image: localhost/busybox:1
    imagePullPolicy: Never
    command: [nc, -ll, -p, "8080", -e, echo, {name}]
    ports: [{{containerPort: 8080, hostPort: 8090}}]
"#
    )
}

/// Returns the Service 10.96.0.80 for the echo pods.
pub(super) fn echo_service() -> String {
    r"
apiVersion: v1
kind: Service
metadata: {name: echo}
spec:
  clusterIP: 10.96.0.80
  selector: {app: echo}
  ports: [{port: 80, targetPort: 8080}]
"
    .to_owned()
}
