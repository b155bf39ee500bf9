//! Tests of the daemon's start with the Node API: the reasons to wait and to exit, and the frequency of requests.

use anyhow::{Context, Result, ensure};
use lab::{Answer, Flanneld, FlanneldOptions, Lab, NodeObject, User, until, until_ok};
use serde_json::json;

use crate::kube::testbed::{ApiTestbed, VXLAN};

/// A daemon has logged the words and `/readyz` replies 503. It has written nothing.
fn wait_held_back_with_words(
    bed: &ApiTestbed,
    daemon: &mut Flanneld,
    words: &[&str],
) -> Result<()> {
    until_ok(&format!("it says that it waits: {words:?}"), || {
        let log = daemon.log();
        ensure!(words.iter().all(|word| log.contains(word)), "{log}");
        ensure!(daemon.get_health_endpoint("/readyz")?.0 == 503, "ready");
        Ok(())
    })?;
    ensure!(daemon.is_running() && !daemon.subnet_file().exists(), "{}", daemon.log());
    if let Ok(node) = bed.admin().node("h1") {
        ensure!(node["metadata"].get("annotations").is_none(), "it published something: {node}");
    }
    Ok(())
}

fn wait_ready_then_stop_and_clean_up(daemon: &mut Flanneld) -> Result<()> {
    daemon.wait_ready()?;
    ensure!(daemon.terminate()?.success(), "{}", daemon.log());
    std::fs::remove_file(daemon.subnet_file())?;
    Ok(())
}

#[test]
fn start_waits_and_reports_what_is_missing() -> Result<()> {
    Lab::run("Node API: waits", |lab| {
        let bed = ApiTestbed::with_fake_api(lab, 1, VXLAN)?;
        let start = || bed.hosts[0].start_flanneld(&bed.options[0]);
        // First there is no API server, then one that refuses, no Node, and one without podCIDR.
        bed.set_proxy_answers(|_| Answer::Cut);
        let mut daemon = start()?;
        wait_held_back_with_words(&bed, &mut daemon, &[])?;
        bed.set_proxy_answers(|_| Answer::failure_status_reply(403, "Forbidden"));
        wait_held_back_with_words(&bed, &mut daemon, &["403"])?;
        bed.set_proxy_answers(|_| Answer::Pass);
        wait_held_back_with_words(&bed, &mut daemon, &["h1"])?;
        let node = NodeObject::new("h1").add_internal_address(bed.hosts[0].v4()?);
        bed.admin().create_node(&node)?;
        wait_held_back_with_words(&bed, &mut daemon, &["pod cidr not assigned"])?;
        let cidr = json!({ "spec": { "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"] } });
        bed.admin().patch_node("h1", &cidr)?;
        wait_ready_then_stop_and_clean_up(&mut daemon)?;
        // A daemon that ends does not report the network as unavailable, because its routes stay.
        ensure!(
            bed.admin().is_network_marked_available("h1"),
            "the condition went with the daemon"
        );

        // The podCIDR is outside Network, as with k3s' 10.42.0.0/16 and flannel's default. The daemon reads the mounted file again.
        bed.admin().delete_node("h1")?;
        bed.admin().create_node(&bed.node_with(1, "10.42.1.0/24"))?;
        let elsewhere = VXLAN.replace("10.244.0.0/16", "10.42.0.0/16");
        let mut daemon = start()?;
        wait_held_back_with_words(
            &bed,
            &mut daemon,
            &["10.42.1.0/24", "10.244.0.0/16", "kube-flannel-cfg"],
        )?;
        std::fs::write(&bed.net_conf, &elsewhere)?;
        wait_ready_then_stop_and_clean_up(&mut daemon)?;

        bed.admin().delete_node("h1")?;
        bed.admin().create_node(&bed.node_with(1, "10.42.1.0/24"))?;
        std::fs::remove_file(&bed.net_conf)?;
        let mut daemon = start()?;
        wait_held_back_with_words(&bed, &mut daemon, &["net-conf.json"])?;
        std::fs::write(&bed.net_conf, &elsewhere)?;
        wait_ready_then_stop_and_clean_up(&mut daemon)?;

        // The podCIDR is the hosts' own network, as with 192.168.0.0/16 at home.
        bed.admin().delete_node("h1")?;
        bed.admin().create_node(&bed.node_with(1, "192.168.56.0/24"))?;
        std::fs::write(&bed.net_conf, VXLAN.replace("10.244.0.0/16", "192.168.0.0/16"))?;
        let mut daemon = start()?;
        wait_held_back_with_words(&bed, &mut daemon, &["podCIDR 192.168.56.0/24", "on enp0s8"])?;
        bed.admin().delete_node("h1")?;
        bed.admin().create_node(&bed.node_with(1, "192.168.77.0/24"))?;
        wait_ready_then_stop_and_clean_up(&mut daemon)
    })
}

#[test]
fn start_that_cannot_succeed_exits_with_1_and_the_reason() -> Result<()> {
    Lab::run("Node API: ends", |lab| {
        let host = &lab.create_hosts(&lab.create_switch("lan")?, 1)?[0];
        let folder = lab.ensure_folder("")?;
        let (net_conf, broken) = (folder.join("net-conf.json"), folder.join("broken.kubeconfig"));
        std::fs::write(&net_conf, VXLAN)?;
        std::fs::write(&broken, "{ this is no kubeconfig")?;
        let kube = |url: &str| FlanneldOptions::kube("h1", &net_conf).arg(url);
        let nowhere = || kube("--kube-api-url=http://127.0.0.1:1");
        let cases = [
            ("NODE_NAME", nowhere().env("NODE_NAME", "")),
            ("org.COM", nowhere().arg("--kube-annotation-prefix=org.COM")),
            ("EVENT_QUEUE_DEPTH=many", nowhere().env("EVENT_QUEUE_DEPTH", "many")),
            ("fd00::1:6443", kube("--kube-api-url=http://127.0.0.1:1,https://fd00::1:6443")),
            ("broken.kubeconfig", kube(&format!("--kubeconfig-file={}", broken.display()))),
        ];
        for (word, options) in cases {
            let mut daemon = host.start_flanneld(&options)?;
            let status = daemon.wait().with_context(|| word.to_owned())?;
            ensure!(status.code() == Some(1), "{word}: {status}\n{}", daemon.log());
            ensure!(daemon.log().contains(word), "{word}: {}", daemon.log());
            std::fs::remove_file(daemon.log_path())?;
        }
        Ok(())
    })
}

fn start_needs_few_calls_and_granted_rights(
    start: fn(&Lab, u8, &str) -> Result<ApiTestbed>,
) -> Result<()> {
    Lab::run("Node API: calls and rights", |lab| {
        let bed = start(lab, 1, VXLAN)?;
        bed.admin().create_node(&bed.node(1))?;
        for number in 10..40 {
            bed.create_peer_node(number)?;
        }
        let proxy = &bed.proxies[0];
        for user in [User::Flannel, User::OldFlannel, User::FlannelWithEvents] {
            let config = bed.api.write_kubeconfig(user, Some(&proxy.url()))?;
            proxy.clear_recorded_calls();
            let file = format!("--kubeconfig-file={}", config.display());
            let options = FlanneldOptions::kube("h1", &bed.net_conf).arg(&file);
            let mut daemon = bed.hosts[0].start_flanneld_and_wait_ready(&options)?;
            until("the condition is there", || bed.admin().is_network_marked_available("h1"))?;
            bed.wait_tunnel_destinations("10.244.39.0/24", Some("192.168.57.39"))?;
            let calls = proxy.calls();
            ensure!(
                calls.len() <= 8 && calls.iter().all(|call| call.agent.starts_with("flannel")),
                "{user:?}: {calls:#?}"
            );
            ensure!(daemon.errors().is_empty(), "{user:?}: {:#?}", daemon.errors());
            ensure!(daemon.terminate()?.success(), "{}", daemon.log());
        }
        Ok(())
    })
}

#[test]
fn start_needs_eight_api_calls() -> Result<()> {
    start_needs_few_calls_and_granted_rights(ApiTestbed::with_fake_api)
}

#[test]
fn start_needs_eight_api_calls_and_the_rights_of_each_manifest() -> Result<()> {
    start_needs_few_calls_and_granted_rights(ApiTestbed::with_real_api)
}
