//! Tests of the daemon's start with the Node API: the reasons to wait and to exit, and the frequency of requests.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Call, FlanneldOptions, Lab, NodeObject, User, throughout, until};
use serde_json::json;

use crate::kube::bed::{Server, VXLAN};

#[test]
fn start_waits_and_reports_what_is_missing() -> Result<()> {
    waits(Server::Real)
}

pub(crate) fn waits(server: Server) -> Result<()> {
    Lab::run("Node API: waits", |lab| {
        let bed = server.empty(lab, 1, VXLAN)?;
        let host = &bed.hosts[0];
        let waits = |daemon: &mut lab::Flanneld, words: &[&str]| -> Result<()> {
            let logged = || words.iter().all(|word| daemon.log().contains(word));
            until("it says what it waits for", logged)
                .with_context(|| format!("{words:?}\n{}", daemon.log()))?;
            throughout(Duration::from_secs(1), "it waits", || {
                ensure!(
                    daemon.is_running() && !daemon.is_ready() && !daemon.subnet_file().exists(),
                    "{}",
                    daemon.log()
                );
                Ok(())
            })
        };
        // First there is no Node, then one without podCIDR. When the podCIDR comes, the node is ready within ten times a second.
        let mut daemon = host.start_flanneld(&bed.options[0])?;
        waits(&mut daemon, &["h1"])?;
        bed.admin()
            .create_node(&NodeObject::new("h1").internal(host.v4()?))?;
        waits(&mut daemon, &["pod cidr not assigned"])?;
        ensure!(
            bed.admin().node("h1")?["metadata"]
                .get("annotations")
                .is_none(),
            "it published something: {}",
            bed.admin().node("h1")?
        );
        bed.admin().patch_node(
            "h1",
            &json!({ "spec": { "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"] } }),
        )?;
        until("it is ready", || daemon.is_ready()).with_context(|| daemon.log())?;
        ensure!(daemon.terminate()?.success(), "{}", daemon.log());
        std::fs::remove_file(daemon.subnet_file())?;
        // A daemon that ends does not report the network as unavailable, because its routes stay.
        ensure!(
            bed.admin().has_network("h1"),
            "the condition went with the daemon"
        );

        // The podCIDR is outside Network, as with k3s' 10.42.0.0/16 and flannel's default. The log names both, and nothing is published.
        bed.admin().delete_node("h1")?;
        bed.admin().create_node(
            &NodeObject::new("h1")
                .pod_cidr("10.42.1.0/24")
                .internal(host.v4()?),
        )?;
        let mut daemon = host.start_flanneld(&bed.options[0])?;
        waits(
            &mut daemon,
            &["10.42.1.0/24", "10.244.0.0/16", "kube-flannel-cfg"],
        )?;
        ensure!(
            bed.admin().node("h1")?["metadata"]
                .get("annotations")
                .is_none(),
            "it published something: {}",
            bed.admin().node("h1")?
        );
        // The daemon reads the mounted file again.
        std::fs::write(
            &bed.net_conf,
            VXLAN.replace("10.244.0.0/16", "10.42.0.0/16"),
        )?;
        until("it is ready", || daemon.is_ready()).with_context(|| daemon.log())?;
        ensure!(daemon.terminate()?.success(), "{}", daemon.log());
        std::fs::remove_file(daemon.subnet_file())?;

        // There is no configuration yet.
        std::fs::remove_file(&bed.net_conf)?;
        let mut daemon = host.start_flanneld(&bed.options[0])?;
        waits(&mut daemon, &["net-conf.json"])?;
        std::fs::write(
            &bed.net_conf,
            VXLAN.replace("10.244.0.0/16", "10.42.0.0/16"),
        )?;
        until("it is ready", || daemon.is_ready()).with_context(|| daemon.log())?;
        Ok(())
    })
}

#[test]
fn start_that_cannot_succeed_exits_with_1_and_the_reason() -> Result<()> {
    Lab::run("Node API: ends", |lab| {
        let lan = lab.switch("lan")?;
        let host = &lab.hosts(&lan, 1)?[0];
        let folder = lab.folder("")?;
        let (net_conf, broken, proxied) = (
            folder.join("net-conf.json"),
            folder.join("broken.kubeconfig"),
            folder.join("proxied.kubeconfig"),
        );
        std::fs::write(&net_conf, VXLAN)?;
        std::fs::write(&broken, "{ this is no kubeconfig")?;
        let proxy = r#"{"current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}],
            "clusters":[{"name":"c","cluster":{"server":"https://192.0.2.1","proxy-url":"http://192.0.2.2:3128"}}]}"#;
        std::fs::write(&proxied, proxy)?;
        let kube = || FlanneldOptions::kube("h1", &net_conf);
        let cases: [(&str, FlanneldOptions, &[&str]); 6] = [
            (
                "no name",
                kube()
                    .env("NODE_NAME", "")
                    .arg("--kube-api-url=http://127.0.0.1:1"),
                &["NODE_NAME", "POD_NAME", "POD_NAMESPACE"],
            ),
            (
                "a prefix",
                kube()
                    .arg("--kube-api-url=http://127.0.0.1:1")
                    .arg("--kube-annotation-prefix=org.COM"),
                &["org.COM"],
            ),
            (
                "a second server",
                kube().arg("--kube-api-url=http://127.0.0.1:1,https://fd00::1:6443"),
                &["fd00::1:6443", "brackets"],
            ),
            (
                "a proxy",
                kube().arg(&format!("--kubeconfig-file={}", proxied.display())),
                &["proxied.kubeconfig", "proxy-url"],
            ),
            (
                "a depth",
                kube()
                    .env("EVENT_QUEUE_DEPTH", "many")
                    .arg("--kube-api-url=http://127.0.0.1:1"),
                &["EVENT_QUEUE_DEPTH=many"],
            ),
            (
                "a kubeconfig",
                kube().arg(&format!("--kubeconfig-file={}", broken.display())),
                &["broken.kubeconfig"],
            ),
        ];
        for (name, options, words) in cases {
            let mut daemon = host.start_flanneld(&options)?;
            let status = daemon.wait().with_context(|| name.to_owned())?;
            ensure!(
                status.code() == Some(1),
                "{name}: {status}\n{}",
                daemon.log()
            );
            for word in words {
                ensure!(
                    daemon.log().contains(word),
                    "{name}: the error does not name {word}:\n{}",
                    daemon.log()
                );
            }
            std::fs::remove_file(daemon.log_path())?;
        }
        Ok(())
    })
}

#[test]
fn start_needs_eight_api_calls_and_the_rights_of_each_manifest() -> Result<()> {
    calls_and_rights(Server::Real)
}

pub(crate) fn calls_and_rights(server: Server) -> Result<()> {
    Lab::run("Node API: calls and rights", |lab| {
        let bed = server.empty(lab, 1, VXLAN)?;
        bed.admin().create_node(&bed.node(1))?;
        for number in 10..40u8 {
            let peer = NodeObject::new(&format!("peer-{number}"))
                .pod_cidr(&format!("10.244.{number}.0/24"));
            bed.admin().create_node(&peer.vxlan_peer(
                &format!("192.168.57.{number}"),
                &format!("02:00:00:00:01:{number}"),
            ))?;
        }
        let host = &bed.hosts[0];
        for user in [User::Flannel, User::OldFlannel, User::FlannelWithEvents] {
            let config = bed.api.kubeconfig(user, Some(&bed.proxies[0].url()))?;
            bed.proxies[0].forget();
            let options = FlanneldOptions::kube("h1", &bed.net_conf)
                .arg(&format!("--kubeconfig-file={}", config.display()));
            let mut daemon = host
                .flanneld(&options)
                .with_context(|| format!("{user:?}"))?;
            until("the condition is there", || bed.admin().has_network("h1"))?;
            bed.wait_tunnel(0, "10.244.39.0/24", Some("192.168.57.39"))?;
            let calls: Vec<String> = bed.proxies[0]
                .calls()
                .iter()
                .map(|call: &Call| format!("{} {} {}", call.method, call.path, call.status))
                .collect();
            ensure!(
                calls.len() <= 8,
                "{user:?}: {} calls:\n{}",
                calls.len(),
                calls.join("\n")
            );
            ensure!(
                daemon.errors().is_empty(),
                "{user:?}: {:#?}",
                daemon.errors()
            );
            ensure!(
                bed.proxies[0]
                    .calls()
                    .iter()
                    .all(|call| call.agent.starts_with("flannel")),
                "who asks? {:?}",
                bed.proxies[0].calls()
            );
            ensure!(daemon.terminate()?.success(), "{}", daemon.log());
        }
        Ok(())
    })
}
