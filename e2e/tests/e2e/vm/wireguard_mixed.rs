//! Tests of a cluster with kernel WireGuard on one node and userspace WireGuard on the other node.

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{FlanneldOptions, Host, Lab, Mesh, ProbeOptions, Store, until_ok};

use super::wireguard::Bed;

/// Starts host 0 with kernel WireGuard and host 1 with userspace WireGuard.
fn mixed(lab: &Lab) -> Result<Bed> {
    let lan = lab.switch("lan")?;
    let hosts = lab.hosts(&lan, 2)?;
    let leases = lab.folder("leases")?;
    let store = Store::dir(&leases);
    let options = FlanneldOptions::new(&store).iface("enp0s8");
    let psk = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let mut daemons = Vec::new();
    // Each daemon reads the configuration when it starts.
    for (host, implementation) in hosts.iter().zip(["kernel", "userspace"]) {
        let backend =
            format!(r#"{{"Type":"wireguard","PSK":"{psk}","Implementation":"{implementation}"}}"#);
        store.configure(&format!(r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{backend}}}"#))?;
        daemons.push(host.flanneld(&options)?);
    }
    let kind = |host: &Host| host.netns().sh("ip -d link show flannel-wg");
    ensure!(
        kind(&hosts[0])?.contains("wireguard") && kind(&hosts[1])?.contains("tun"),
        "{} {}",
        kind(&hosts[0])?,
        kind(&hosts[1])?
    );
    let bed = Bed {
        bed: lab::Bed {
            pods: lab::Bed::pods(&hosts, &daemons)?,
            daemons,
            options: vec![options; 2],
            hosts,
            store,
            leases,
            lan,
        },
        mtu: 1420,
    };
    bed.all_reach_all("both understand each other")?;
    Ok(bed)
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn kernel_and_userspace_nodes_interoperate() -> Result<()> {
    Lab::run("vm: wireguard both", |lab| mixed(lab)?.require_no_errors())
}

/// The node that initiated a session initiates the next session after two minutes. The tunnel neither loses nor
/// duplicates packets, although the underlay reorders and duplicates datagrams.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn mixed_sessions_are_renewed_by_their_initiator() -> Result<()> {
    Lab::run("vm: wireguard renewed", |lab| {
        let mut bed = mixed(lab)?;
        let initiated = |bed: &Bed| {
            bed.daemons[1].metric(
                r#"flannel_datapath_handshakes_total{device="flannel-wg",event="initiated"}"#,
            )
        };
        for engine_begins in [true, false] {
            // The side that has lost its session initiates the new one.
            if engine_begins {
                bed.daemons[1].terminate()?;
                bed.daemons[1] = bed.hosts[1].flanneld(&bed.options[1])?;
            } else {
                bed.hosts[0]
                    .netns()
                    .exec("ip", &["link", "del", "flannel-wg"])?;
            }
            until_ok("packets pass again", || {
                ensure!(bed.passes(0, 1)? && bed.passes(1, 0)?, "they do not");
                Ok(())
            })?;
            for host in &bed.hosts {
                host.netns().sh("tc qdisc replace dev enp0s8 root netem delay 4ms 2ms reorder 30% duplicate 20% limit 10000")?;
            }
            let mesh = Mesh::start(
                &bed.pods,
                &ProbeOptions::default().interval(Duration::from_millis(20)),
            )?;
            mesh.wait_flowing()?;
            let (asked, handshakes) = (initiated(&bed)?, bed.wg(0, "latest-handshakes")?);
            until_ok("the session is renewed", || {
                ensure!(bed.wg(0, "latest-handshakes")? > handshakes, "it is not");
                Ok(())
            })?;
            // Packets of the former session are still accepted.
            std::thread::sleep(Duration::from_secs(3));
            ensure!(
                (initiated(&bed)? > asked) == engine_begins,
                "the engine began: {engine_begins}, and asked {} times",
                initiated(&bed)? - asked
            );
            for (path, report) in mesh.finish()? {
                println!("{path}, the engine began: {engine_begins}: {report}");
                report.require_clean()?;
                ensure!(report.duplicates == 0, "{path}: {report}");
            }
            for host in &bed.hosts {
                host.netns().sh("tc qdisc del dev enp0s8 root")?;
            }
        }
        let copies = bed.daemons[1].metric(
            r#"flannel_datapath_dropped_packets_total{device="flannel-wg",direction="received",reason="replayed"}"#,
        )?;
        ensure!(copies > 0.0, "the underlay repeated nothing");
        bed.require_no_errors()
    })
}
