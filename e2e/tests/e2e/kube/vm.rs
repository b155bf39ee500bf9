//! Kubernetes tests that need a kernel with IPVS.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use lab::{Echo, Lab, Launch, User, ask_seen_source_per_port, binaries, until_ok};
use serde_json::json;

use crate::kube::testbed::{ApiTestbed, VXLAN};

const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 80);
const PORT: u16 = 80;

/// A Service in kube-proxy's IPVS mode is reachable from a pod and from both nodes. The endpoint is on each of the two nodes in turn.
#[test]
#[ignore = "needs a kernel with IPVS: make test-vm"]
fn ipvs_service_is_reachable_from_pods_and_nodes() -> Result<()> {
    Lab::run("vm: IPVS", |lab| {
        let mut bed = ApiTestbed::with_real_api(lab, 2, VXLAN)?;
        bed.start_nodes_daemons_and_pods()?;
        let admin = bed.api.write_kubeconfig(User::Admin, None)?;
        let mut proxies = Vec::new();
        for host in &bed.hosts {
            host.netns().exec("modprobe", &["-a", "ip_vs", "ip_vs_rr", "nf_conntrack"])?;
            let launch = Launch::new(binaries::kubernetes_program("kube-proxy")?)
                .args([
                    "--proxy-mode=ipvs",
                    "--conntrack-max-per-core=0",
                    "--cluster-cidr=10.244.0.0/16",
                ])
                .args([
                    "--conntrack-tcp-timeout-established=0",
                    "--conntrack-tcp-timeout-close-wait=0",
                ])
                .arg(format!("--kubeconfig={}", admin.display()));
            proxies.push(host.spawn("kube-proxy", &launch)?);
        }
        let port = json!({ "name": "echo", "protocol": "UDP", "port": PORT });
        let spec = json!({ "clusterIP": SERVICE, "ports": [port] });
        bed.admin().create(
            "/api/v1/namespaces/default/services",
            &json!({ "metadata": { "name": "echo" }, "spec": spec }),
        )?;
        for (number, pod) in bed.pods.iter().enumerate() {
            let echo = Echo::start_source_reporter(pod.netns(), pod.address()?)?;
            let slice = json!({
                "metadata": { "name": "echo", "labels": { "kubernetes.io/service-name": "echo" } },
                "addressType": "IPv4",
                "endpoints": [{ "addresses": [pod.address()?], "nodeName": bed.hosts[number].name(), "conditions": { "ready": true } }],
                "ports": [{ "name": "echo", "protocol": "UDP", "port": echo.address().port() }],
            });
            let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
            bed.admin().create(slices, &slice)?;
            let other = &bed.pods[1 - number];
            // The endpoint sees a pod's own address, and for a node the address of its tunnel.
            let ask = |from: &lab::Netns, want: Option<IpAddr>| {
                until_ok("the Service answers", || {
                    let answers = ask_seen_source_per_port(
                        from,
                        Ipv4Addr::UNSPECIFIED.into(),
                        std::iter::once(0),
                        SocketAddr::new(SERVICE.into(), PORT),
                    )?;
                    let seen = answers.first().and_then(|(_, seen)| *seen).context("no answer")?;
                    ensure!(
                        want.is_none_or(|want| seen.ip() == want),
                        "seen as {seen}, not {want:?}"
                    );
                    Ok(())
                })
            };
            ask(other.netns(), Some(other.address()?)).with_context(|| {
                let look =
                    "cat /proc/net/ip_vs /proc/net/ip_vs_conn; ip -brief address; iptables-save -c";
                let seen: Vec<_> = bed.hosts.iter().map(|host| host.netns().sh(look)).collect();
                format!("from a pod of the other node:\n{seen:#?}")
            })?;
            for (host, place) in bed.hosts.iter().zip(["the first node", "the second node"]) {
                ask(host.netns(), None).with_context(|| format!("from {place}"))?;
            }
            let virtual_servers = bed.hosts[0].netns().exec("cat", &["/proc/net/ip_vs"])?;
            ensure!(
                virtual_servers.contains("UDP  0A600050:0050"),
                "no virtual server:\n{virtual_servers}"
            );
            bed.admin().delete(&format!("{slices}/echo"))?;
        }
        Ok(())
    })
}
