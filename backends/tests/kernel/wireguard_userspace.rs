//! WireGuard in the packet engine: the backend with a real kernel, and a second packet engine in
//! another namespace as the peer.

use crate::bed::*;
use backends::Setup;
use netstate::object::wireguard_peer::{PublicKey, Secret};
use nix::sched::{CloneFlags, setns};
use packet_engine::engine::config::EngineConfig;
use packet_engine::engine::{Engine, Inheritance};
use packet_engine::features::Features;
use packet_engine::table::{Table, TableSettings};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use subnet_lease::{LeaseTable, RawJson};
use types::kernel_object::ObjectState;
use wireguard_userspace::{Device, FRAMING};

const USERSPACE: &str = r#"{"Type":"wireguard","Implementation":"userspace"}"#;

/// The private key is in a folder of its own.
fn setup_in(folder: &tempfile::TempDir) -> Setup {
    Setup { key_file: Some(folder.path().join("key")), ..setup(V4, USERSPACE) }
}

/// Node 2, in another network namespace that is connected to `eth0`.
struct Other {
    _engine: Engine,
    device: Arc<Device>,
    namespace: String,
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ =
            std::process::Command::new("ip").args(["netns", "delete", &self.namespace]).status();
    }
}

impl Other {
    /// Moves `wire0` to a new namespace, adds the address of node 2's lease to it, and starts an
    /// engine.
    fn new(secret: &Secret) -> Self {
        let namespace = format!("fl-wg-{}-{:?}", std::process::id(), std::thread::current().id())
            .replace(['(', ')'], "");
        let run = format!("ip netns exec {namespace}");
        sh(&format!(
            "ip netns add {namespace}; ip link set wire0 netns {namespace}; {run} ip link set lo up; {run} ip link set wire0 up"
        ));
        sh(&format!("{run} ip addr add 192.168.56.2/24 dev wire0"));
        let path = format!("/run/netns/{namespace}");
        // Sockets and TUN devices belong to the namespace in which they are opened.
        let opened = std::thread::spawn(move || {
            setns(std::fs::File::open(path).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
            let features = Features { queues: 1, ..Features::offload() };
            let config = EngineConfig {
                device: "other".to_owned(),
                framing: FRAMING,
                port: 51820,
                spread: false,
                features,
                sources: None,
            };
            let table = Table::build(TableSettings::default(), []);
            let mut engine = Engine::new(config, table, Inheritance::default());
            let device = Device::encrypting(&mut engine);
            engine.open_and_start(types::Addresses::V4(Ipv4Addr::UNSPECIFIED)).unwrap();
            (engine, device)
        });
        let (engine, device) = opened.join().unwrap();
        let mut change = device.change();
        change.set_mtu(1420);
        change.set_private_key(secret.clone());
        drop(change);
        sh(&format!(
            "{run} ip addr add 10.244.2.1/32 dev other; {run} ip link set other mtu 1420 up; {run} ip route add 10.244.0.0/16 dev other"
        ));
        Self { _engine: engine, device, namespace }
    }

    fn rekey(&self, secret: &Secret) {
        self.device.change().set_private_key(secret.clone());
    }

    /// Adds node 1 to the peers of node 2, which learns its endpoint from authentic datagrams.
    fn meets(&self, node: PublicKey) {
        let mut change = self.device.change();
        change.set_peer(node, None, None, 0).unwrap();
        change.set_allowed_ip("10.244.1.0/24".parse().unwrap(), node).unwrap();
    }
}

/// Only node 2, with this public key.
fn leases(setup: &Setup, key: PublicKey) -> LeaseTable {
    let mut other = lease(setup, 2);
    other.attrs.data =
        Some(RawJson::of(&serde_json::json!({"PublicKey": key.to_string(), "Port": 51820})));
    LeaseTable::of([other], BTreeSet::new())
}

/// Waits until node 2 replies to a ping from the pod subnet of node 1.
async fn answers(what: &str) {
    // The ping runs outside the runtime, which has the node's work to do.
    let ping = || {
        tokio::task::spawn_blocking(|| {
            sh("ping -q -c 1 -W 1 -I 10.244.1.0 10.244.2.1 2>&1 || true")
        })
    };
    let answered = async { while !ping().await.unwrap().contains(" 1 received") {} };
    wait::complete(&format!("node 2 answers {what}"), answered).await.unwrap();
}

fn public_key(node: &Node) -> PublicKey {
    let data: serde_json::Value =
        serde_json::from_str(node.announced.data.as_ref().unwrap().as_str()).unwrap();
    PublicKey::parse(data["PublicKey"].as_str().unwrap()).unwrap()
}

#[test]
fn packets_pass_and_everything_heals() {
    in_namespace(|| async {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        let other = Other::new(&first);
        let setup = setup_in(&folder);
        let node = Node::start_with(setup.clone(), leases(&setup, first.public())).await;
        node.idle().await;
        other.meets(public_key(&node));
        answers("in the first session").await;

        // Damages the device, its address and its routes.
        sh("ip link delete flannel-wg");
        until("the device is back", || sh("ip -d link show type tun").contains("flannel-wg")).await;
        answers("after the device was deleted").await;
        sh(
            "ip route delete 10.244.0.0/16 dev flannel-wg; ip addr flush dev flannel-wg; ip link set flannel-wg mtu 1300",
        );
        answers("after route, address and MTU were changed").await;
        node.idle().await;
        assert!(sh("ip link show flannel-wg").contains("mtu 1420"));
        for object in node.inspect().await.objects {
            assert_eq!(object.state, ObjectState::InSync, "{object:?}");
        }

        // The other node gets a new key: the device first, then the lease.
        other.rekey(&second);
        node.leases.send_replace(Arc::new(leases(&setup, second.public())));
        answers("after the other node's key changed").await;

        // A packet whose source is not in the sender's subnet does not arrive.
        let stray = format!(
            "ip netns exec {0} ip addr add 10.244.9.1/32 dev other; ip netns exec {0} ping -q -c 2 -i 0.2 -W 1 -I 10.244.9.1 10.244.1.0 || true",
            other.namespace
        );
        assert!(sh(&stray).contains(" 0 received"));
        let status = node.status();
        let dropped = &status.engines[0].received.dropped;
        assert!(
            dropped.iter().any(|(reason, count)| *reason == "spoofed" && *count >= 2),
            "{dropped:?}"
        );

        node.stop().await;
    });
}
