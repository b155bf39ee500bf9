//! Shared parts of the Kubernetes tests: hosts with a daemon each on one API server, and echo pods for real clusters.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use lab::{
    ApiClient, ApiServer, Families, Flanneld, FlanneldOptions, Host, Lab, NodeObject, Pod, Probe,
    ProbeOptions, Proxy, Uplink, until_ok, wait_pods_connected,
};

pub(super) const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
pub(super) const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:244::/48","Backend":{"Type":"vxlan"}}"#;
pub(super) const V6_ONLY: &str = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd10:244::/48","Backend":{"Type":"vxlan"}}"#;

/// `h1`, `h2`, … on one switch, and two proxies through which they reach an API server. Rust drops the fields in the order of their declaration.
pub(super) struct ApiTestbed {
    pub(super) daemons: Vec<Flanneld>,
    pub(super) options: Vec<FlanneldOptions>,
    pub(super) pods: Vec<Pod>,
    /// The daemons use the first proxy. The second one is the next address in `--kube-api-url`.
    pub(super) proxies: [Proxy; 2],
    pub(super) api: ApiServer,
    pub(super) hosts: Vec<Host>,
    pub(super) net_conf: PathBuf,
}

impl ApiTestbed {
    /// A real API server, and hosts that have neither Nodes nor daemons.
    pub(super) fn with_real_api(lab: &Lab, hosts: u8, net_conf: &str) -> Result<ApiTestbed> {
        ApiTestbed::with_api(lab, hosts, net_conf, |host| ApiServer::start(host, Families::Dual))
    }

    /// Like `with_real_api`, with the fake API server. The contract of `subnet-lease` shows that the fake answers as the real one.
    pub(super) fn with_fake_api(lab: &Lab, hosts: u8, net_conf: &str) -> Result<ApiTestbed> {
        ApiTestbed::with_api(lab, hosts, net_conf, |host| {
            ApiServer::start_fake(host, Families::Dual)
        })
    }

    /// The fake API server, and hosts with a Node, a ready daemon and a pod each. Waits until all pods reach each other.
    pub(super) fn populated_with_fake_api(
        lab: &Lab,
        hosts: u8,
        net_conf: &str,
    ) -> Result<ApiTestbed> {
        let mut bed = ApiTestbed::with_fake_api(lab, hosts, net_conf)?;
        bed.start_nodes_daemons_and_pods()?;
        Ok(bed)
    }

    /// Hosts that have neither Nodes nor daemons, with an API server that `start` starts.
    pub(super) fn with_api(
        lab: &Lab,
        hosts: u8,
        net_conf: &str,
        start: impl Fn(&Host) -> Result<ApiServer>,
    ) -> Result<ApiTestbed> {
        let lan = lab.create_switch("lan")?;
        let uplink = |number, gateway| {
            Uplink::enp0s8(&lan, number)?
                .gateway(&format!("192.168.56.{gateway}"))?
                .gateway(&format!("fd00:56::{gateway}"))
        };
        let api = start(&lab.create_host("api", &[uplink(99, 254)?])?)?;
        let hosts = (1..=hosts)
            .map(|number| lab.create_host(&format!("h{number}"), &[uplink(number, 199)?]))
            .collect::<Result<Vec<_>>>()?;
        ApiTestbed::from_api_and_hosts(lab, api, hosts, net_conf)
    }

    pub(super) fn from_api_and_hosts(
        lab: &Lab,
        api: ApiServer,
        hosts: Vec<Host>,
        net_conf: &str,
    ) -> Result<ApiTestbed> {
        let file = lab.ensure_folder("")?.join("net-conf.json");
        std::fs::write(&file, net_conf)?;
        let proxies = [api.start_proxy(8001)?, api.start_proxy(8002)?];
        let urls = format!("--kube-api-url={},{}", proxies[0].url(), proxies[1].url());
        let options =
            hosts.iter().map(|host| FlanneldOptions::kube(host.name(), &file).arg(&urls)).collect();
        Ok(ApiTestbed {
            daemons: Vec::new(),
            options,
            pods: Vec::new(),
            proxies,
            api,
            hosts,
            net_conf: file,
        })
    }

    /// A Node, a ready daemon and a pod for each host. Waits until all pods reach each other.
    pub(super) fn start_nodes_daemons_and_pods(&mut self) -> Result<()> {
        for number in 1..=self.hosts.len() {
            self.admin().create_node(&self.node(number))?;
        }
        self.start_ready_daemons()?;
        self.start_connected_pods("p1")
    }

    /// The Node has both families. The first host has the number 1.
    pub(super) fn node(&self, number: usize) -> NodeObject {
        self.node_with(number, &format!("10.244.{number}.0/24"))
            .pod_cidr(&format!("fd10:244:0:{number}::/64"))
    }

    pub(super) fn node_with(&self, number: usize, pod_cidr: &str) -> NodeObject {
        NodeObject::new(&format!("h{number}"))
            .pod_cidr(pod_cidr)
            .add_internal_address([192, 168, 56, 100 + number as u8])
            .add_internal_address(format!("fd00:56::{}", number + 100).parse::<IpAddr>().unwrap())
    }

    /// Does not wait until they are ready.
    pub(super) fn launch_daemons(&mut self) -> Result<()> {
        let hosts = self.hosts.iter().zip(&self.options);
        let daemons = hosts.map(|(host, options)| host.start_flanneld(options));
        self.daemons = daemons.collect::<Result<_>>()?;
        Ok(())
    }

    pub(super) fn start_ready_daemons(&mut self) -> Result<()> {
        self.launch_daemons()?;
        self.wait_daemons_ready()
    }

    pub(super) fn wait_daemons_ready(&mut self) -> Result<()> {
        self.daemons.iter_mut().try_for_each(|daemon| daemon.wait_ready().map(drop))
    }

    /// Starts one on each host and waits until they reach each other.
    pub(super) fn start_connected_pods(&mut self, name: &str) -> Result<()> {
        self.create_pod_on_each_host(name)?;
        if self.pods.len() > 1 { self.wait_pods_connected() } else { Ok(()) }
    }

    pub(super) fn create_pod_on_each_host(&mut self, name: &str) -> Result<()> {
        let hosts = self.hosts.iter().zip(&self.daemons);
        let pods = hosts.map(|(host, daemon)| host.create_pod(name, &daemon.subnet_env()?));
        self.pods = pods.collect::<Result<_>>()?;
        Ok(())
    }

    pub(super) fn admin(&self) -> ApiClient {
        self.api.admin()
    }

    /// Waits until all pods reach each other in the families that all of them have.
    pub(super) fn wait_pods_connected(&self) -> Result<()> {
        wait_pods_connected(&self.pods)
    }

    /// The probe runs from the first pod to the second one.
    pub(super) fn probe_first_to_second_pod(&self) -> Result<Probe> {
        Probe::start(&self.pods[0], &self.pods[1], &ProbeOptions::default())
    }

    /// Sets how both proxies answer.
    pub(super) fn set_proxy_answers(
        &self,
        judge: impl Fn(&lab::Call) -> lab::Answer + Send + Sync + Copy + 'static,
    ) {
        self.proxies.iter().for_each(|proxy| proxy.set_judge(judge));
    }

    /// The underlay address to which a host's `flannel.1` sends packets for a subnet, from the FDB entry.
    pub(super) fn tunnel_destination(&self, host: usize, subnet: &str) -> Result<Option<String>> {
        let word_after = |before: &str, begin: &str, program: &str, args: &str| -> Result<_> {
            let args: Vec<&str> = args.split(' ').chain(["dev", "flannel.1"]).collect();
            let text = self.hosts[host].netns().exec(program, &args)?;
            let line = text.lines().find(|line| line.starts_with(begin));
            let mut words = line.unwrap_or_default().split_whitespace();
            Ok(words.find(|word| *word == before).and_then(|_| words.next()).map(str::to_owned))
        };
        let routes = format!("route show exact {subnet}");
        let Some(gateway) = word_after("via", "", "ip", &routes)? else {
            return Ok(None);
        };
        let neighbours = format!("neighbour show to {gateway}");
        let Some(mac) = word_after("lladdr", "", "ip", &neighbours)? else {
            return Ok(None);
        };
        word_after("dst", &mac, "bridge", "fdb show")
    }

    /// Waits until every host sends packets for a subnet to the address `to`, or to none if it is `None`.
    pub(super) fn wait_tunnel_destinations(&self, subnet: &str, to: Option<&str>) -> Result<()> {
        for (number, host) in self.hosts.iter().enumerate() {
            let what = format!("{} sends what is for {subnet} to {to:?}", host.name());
            until_ok(&what, || {
                let found = self.tunnel_destination(number, subnet)?;
                ensure!(found.as_deref() == to, "it sends it to {found:?}");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The first host's routes, neighbours and FDB entries for the other hosts, as sorted text.
    pub(super) fn first_host_peer_entries(&self) -> Result<String> {
        let all = self.hosts[0].netns().sh("ip route show dev flannel.1; ip neighbour show dev flannel.1; bridge fdb show dev flannel.1")?;
        let names = (2..=self.hosts.len()).flat_map(|number| {
            [format!("10.244.{number}.0"), format!("192.168.56.{}", number + 100)]
        });
        let names: Vec<String> = names.collect();
        let is_of_host = |line: &&str| names.iter().any(|name| line.contains(name));
        let mut lines: Vec<&str> = all.lines().map(str::trim).filter(is_of_host).collect();
        lines.sort_unstable();
        Ok(lines.join("\n"))
    }

    /// Every host currently applies changes of Nodes: creates a peer, waits until each host sends packets to it, and deletes it.
    ///
    /// Its kernel objects may stay for a minute, because daemons delay removals by a minute after an outage.
    pub(super) fn require_new_peer_node_is_applied(&self) -> Result<()> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = 231 + NUMBER.fetch_add(1, Ordering::Relaxed) % 20;
        let name = self.create_peer_node(number)?;
        let public = format!("192.168.57.{number}");
        self.wait_tunnel_destinations(&format!("10.244.{number}.0/24"), Some(&public))?;
        self.admin().delete_node(&name)
    }

    /// A Node with the subnet 10.244.N.0/24 and the address 192.168.57.N. The result is its name.
    pub(super) fn create_peer_node(&self, number: usize) -> Result<String> {
        let name = format!("peer-{number}");
        let node = NodeObject::new(&name).pod_cidr(&format!("10.244.{number}.0/24"));
        let (public, mac) =
            (format!("192.168.57.{number}"), format!("02:00:00:00:02:{number:02x}"));
        self.admin().create_node(&node.add_vxlan_annotations(&public, &mac))?;
        Ok(name)
    }

    /// The earlier daemon has ended. Waits until the new one is ready.
    pub(super) fn start_daemon_again(&mut self, host: usize) -> Result<()> {
        self.daemons[host] = self.hosts[host].start_flanneld(&self.options[host])?;
        self.daemons[host].wait_ready().map(drop)
    }

    /// No daemon ends or panics in the scenario, and all pods reach each other afterwards.
    pub(super) fn require_recovery_after(
        &mut self,
        name: &str,
        scenario: impl FnOnce(&mut ApiTestbed) -> Result<()>,
    ) -> Result<()> {
        scenario(self).with_context(|| name.to_owned())?;
        self.proxies.iter().for_each(Proxy::forward_all_requests);
        self.wait_pods_connected().with_context(|| format!("after {name}"))?;
        for daemon in &mut self.daemons {
            ensure!(
                daemon.is_running() && !daemon.log().contains("panicked at"),
                "{name}: {}",
                daemon.log_tail(20)
            );
        }
        Ok(())
    }
}

/// Replies to each TCP connection on port 8080 with its own name. The hostPort 8090 also leads to the pod.
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

/// 10.96.0.80, for the echo pods.
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
