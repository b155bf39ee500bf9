//! Proves that WireGuard of the packet engine carries packets between nodes, byte by byte, and that none leaves in the clear.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::{
    Bed, Capture, FileStore, Lab, PingMatrix, PingOptions, Probe, ProbeOptions, eventually_ok,
};
use serde_json::json;

use crate::datapath::all_carry;

const SOON: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(20);
/// IPv6 40, UDP 8, WireGuard 32, as for the kernel's device.
const OVERHEAD: u32 = 80;

/// Hosts with a key file each, whose daemons have one variable each.
fn bed(lab: &Lab, mode: &str, variable: &str, values: &[&str]) -> Result<Bed> {
    let keys = lab.folder("keys")?;
    let backend = json!({ "Type": "wireguard", "Implementation": "userspace", "Mode": mode });
    let conf = json!({ "EnableIPv6": true, "Network": "10.5.0.0/16", "IPv6Network": "fd00:5::/48", "Backend": backend }).to_string();
    Bed::start(lab, values.len().try_into()?, &conf, |number, options| {
        options
            .env(
                "WIREGUARD_KEY_FILE",
                &keys.join(number.to_string()).display().to_string(),
            )
            .env(variable, values[number])
    })
}

#[test]
fn between_all_ways_of_moving_packets() -> Result<()> {
    for mode in ["separate", "auto"] {
        Lab::run(&format!("wireguard ways {mode}"), |lab| {
            all_carry(
                &bed(
                    lab,
                    mode,
                    "FLANNELD_DATAPATH",
                    &["offload", "mmsg", "plain"],
                )?,
                (OVERHEAD, OVERHEAD),
            )
        })?;
    }
    Ok(())
}

#[test]
fn several_queues_beside_one() -> Result<()> {
    Lab::run("wireguard queues", |lab| {
        all_carry(
            &bed(lab, "ipv6", "FLANNELD_DATAPATH_QUEUES", &["4", "1"])?,
            (OVERHEAD, OVERHEAD),
        )
    })
}

/// What a node that restarted receives is lost until it has a session. It begins by itself, with every peer, and does not wait for its own traffic.
/// Meanwhile nothing leaves in the clear.
#[test]
fn a_restart_is_short_and_shows_nothing() -> Result<()> {
    Lab::run("wireguard restart", |lab| {
        let mut bed = bed(
            lab,
            "separate",
            "FLANNELD_DATAPATH",
            &["offload", "offload"],
        )?;
        let pods: Vec<IpAddr> = bed
            .pods
            .iter()
            .map(|pod| Ok(pod.v4()?.into()))
            .collect::<Result<_>>()?;
        let ping = |bed: &Bed| {
            PingMatrix::to(&bed.pods, &pods, &PingOptions::default())?.require_complete()
        };
        let capture = Capture::start(bed.lan.netns())?;
        eventually_ok(SOON, "all reach all", || ping(&bed))?;
        bed.daemons[1].terminate(STOP)?;
        bed.daemons[1] = bed.hosts[1].flanneld(&bed.options[1])?;
        eventually_ok(SOON, "all reach all again", || ping(&bed))?;
        let mut initiations = 0;
        for frame in capture.finish()? {
            let (kind, inner) = (frame.get(12..14), frame.get(26..28));
            ensure!(
                kind != Some(&[8, 0]) || inner != Some(&[10, 5]),
                "a packet of a pod in the clear: {frame:02x?}"
            );
            initiations += usize::from(
                frame.len() == 14 + 20 + 8 + 148
                    && frame.get(36..38) == Some(&51820_u16.to_be_bytes()),
            );
        }
        ensure!(initiations > 0, "no handshake was seen");
        bed.require_no_errors()
    })
}

/// A peer that only sends, and a node that answers nothing and restarts with its files kept. What the peer goes on sending in the former session nobody
/// can open, and the peer learns of that from nothing but silence, after 9 s and more. So the node begins the new session.
#[test]
fn one_way_traffic_to_a_node_that_restarts_is_soon_received_again() -> Result<()> {
    /// Ten times the goal, beside the time that the machine takes to start a program.
    const LOST_AT_MOST: Duration = Duration::from_secs(3);
    Lab::run("wireguard one way", |lab| {
        let store = FileStore::start(&lab.folder("")?.join("notify"))?;
        let conf = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard","Implementation":"userspace"}}"#;
        // Probes between the nodes would be the node's own traffic.
        let mut bed = Bed::start(lab, 2, conf, |number, options| {
            let options = options.arg("--probe-port=0");
            if number == 0 {
                options.file_store(&store)
            } else {
                options
            }
        })?;
        let sent = |bed: &Bed| {
            bed.daemons[0]
                .metric("flannel_datapath_packets_total{device=\"flannel-wg\",direction=\"sent\"}")
        };
        for killed in [false, true, false] {
            let probe = Probe::start(
                &bed.pods[1],
                &bed.pods[0],
                &ProbeOptions::default().interval(Duration::from_millis(1)),
            )?;
            probe.wait_flowing(SOON)?;
            let began = Instant::now();
            if killed {
                bed.daemons[0].kill()?;
            } else {
                bed.daemons[0].terminate(STOP)?;
            }
            bed.daemons[0] = bed.hosts[0].flanneld(&bed.options[0])?;
            let ready = began.elapsed();
            probe.wait_flowing(STOP)?;
            let report = probe.finish()?;
            eprintln!("killed {killed}: ready after {ready:.0?}; {report}");
            ensure!(
                report.longest_outage < ready + LOST_AT_MOST && report.wrong == 0,
                "ready after {ready:.0?}; {report}"
            );
            ensure!(
                report.lost > 0,
                "nothing was lost: this was no restart, or the sessions outlived it, and the pages say otherwise: {report}"
            );
            let own = sent(&bed)?;
            ensure!(
                own == 0.0,
                "{own} packets of the node's own went the other way: they could have begun the session"
            );
            ensure!(
                bed.daemons[0]
                    .log()
                    .contains("adopted the device and sockets"),
                "nothing was taken over"
            );
        }
        bed.require_no_errors()
    })
}

/// A node that is known by another address than the one that its route names. A peer behind a NAT, or a strict firewall, lets in nothing but answers from
/// the address that it sends to.
#[test]
fn answers_come_from_the_address_that_was_asked() -> Result<()> {
    const PUBLIC: &str = "192.168.56.201";
    Lab::run("wireguard source", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        hosts[0]
            .netns()
            .ip(&format!("address add {PUBLIC}/24 dev enp0s8"))?;
        hosts[1].netns().feed(
            "nft",
            &["-f", "-"],
            "table ip strict {\n chain in { type filter hook input priority -300;\n ct state established accept\n iifname enp0s8 udp dport 51820 drop; }\n}\n",
        )?;
        let conf = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard","Implementation":"userspace"}}"#;
        let mut bed = Bed::on(lab, &lan, hosts, conf, |number, options| {
            let options = options.arg("--probe-port=0");
            if number == 0 {
                options.arg(&format!("--public-ip={PUBLIC}"))
            } else {
                options
            }
        })?;
        let capture = Capture::start(bed.lan.netns())?;
        bed.daemons[1].terminate(STOP)?;
        bed.daemons[1] = bed.hosts[1].flanneld(&bed.options[1])?;
        bed.reach()?;
        // Of what it sends, only its own attempts at a handshake leave as the route says.
        let own: Ipv4Addr = bed.hosts[0].v4()?;
        let mut answers = 0;
        for frame in capture.finish()? {
            let (source, ports) = (frame.get(26..30), frame.get(34..38));
            if ports != Some(&[0xca, 0x6c, 0xca, 0x6c]) {
                continue;
            }
            ensure!(
                source != Some(&own.octets()) || frame.get(42) == Some(&1),
                "an answer, or a packet, from the other address: {frame:02x?}"
            );
            answers += usize::from(source == Some(&[192, 168, 56, 201]));
        }
        ensure!(answers > 0, "no answer was seen");
        bed.require_no_errors()
    })
}

/// A node whose NAT gives it another port again and again, and which says nothing but its keepalives. What is sent to it follows, whatever its lease says.
#[test]
fn a_port_that_wanders_is_followed() -> Result<()> {
    const KEEPALIVE: u32 = 1;
    Lab::run("wireguard roams", |lab| {
        let backend = json!({ "Type": "wireguard", "Implementation": "userspace", "PersistentKeepaliveInterval": KEEPALIVE });
        let conf = json!({ "Network": "10.5.0.0/16", "Backend": backend }).to_string();
        let bed = Bed::start(lab, 2, &conf, |_, options| options.arg("--probe-port=0"))?;
        let probe = Probe::start(
            &bed.pods[0],
            &bed.pods[1],
            &ProbeOptions::default().interval(Duration::from_millis(1)),
        )?;
        probe.wait_flowing(SOON)?;
        let capture = Capture::start(bed.lan.netns())?;
        let ports = [40001_u16, 40002, 40003];
        for port in ports {
            // The port of before leads nowhere any more.
            bed.hosts[1].netns().feed(
                "nft",
                &["-f", "-"],
                &format!(
                    "table ip nat9\ndelete table ip nat9\ntable ip nat9 {{\n\
                 chain out {{ type filter hook postrouting priority -300; oifname enp0s8 udp sport 51820 notrack udp sport set {port}; }}\n\
                 chain in {{ type filter hook prerouting priority -400;\n\
                 iifname enp0s8 udp dport != {port} udp dport 40000-51820 drop\n iifname enp0s8 udp dport {port} udp dport set 51820; }}\n}}\n"
                ),
            )?;
            // What was under way arrives still.
            std::thread::sleep(Duration::from_millis(20));
            probe.wait_flowing(STOP)?;
            // A repair looks at everything, and leaves an endpoint that answers where it is.
            bed.hosts[0].netns().ip("link set flannel-wg mtu 1300")?;
            eventually_ok(SOON, "the device is repaired", || {
                ensure!(
                    bed.hosts[0]
                        .netns()
                        .link("flannel-wg")?
                        .is_some_and(|link| link.mtu == 1420)
                );
                Ok(())
            })?;
            probe.wait_flowing(SOON)?;
        }
        let report = probe.finish()?;
        eprintln!("{report}");
        // Ten times what it takes: a keepalive, and its processing at both ends.
        ensure!(
            report.longest_outage < Duration::from_secs(20) && report.wrong == 0,
            "{report}"
        );
        let frames = capture.finish()?;
        for port in ports {
            let sent = frames
                .iter()
                .filter(|frame| {
                    frame.get(12..14) == Some(&[8, 0])
                        && frame.get(36..38) == Some(&port.to_be_bytes())
                })
                .count();
            ensure!(sent > 10, "{sent} datagrams to port {port}");
        }
        bed.require_no_errors()
    })
}

/// Both ends restart at once, with their files kept, and begin with each other: neither initiation undoes what the other one began. A handshake that is lost
/// is repeated after 5 s.
#[test]
fn two_that_begin_at_once_agree() -> Result<()> {
    const AGREED: Duration = Duration::from_secs(3);
    Lab::run("wireguard at once", |lab| {
        let folder = lab.folder("")?;
        let stores = (0..2)
            .map(|number| FileStore::start(&folder.join(format!("notify{number}"))))
            .collect::<Result<Vec<_>>>()?;
        let conf = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard","Implementation":"userspace"}}"#;
        let mut bed = Bed::start(lab, 2, conf, |number, options| {
            options.arg("--probe-port=0").file_store(&stores[number])
        })?;
        for _ in 0..6 {
            let options = ProbeOptions::default().interval(Duration::from_millis(1));
            let probes = [
                Probe::start(&bed.pods[0], &bed.pods[1], &options)?,
                Probe::start(&bed.pods[1], &bed.pods[0], &options)?,
            ];
            probes
                .iter()
                .try_for_each(|probe| probe.wait_flowing(SOON).map(drop))?;
            let began = Instant::now();
            bed.daemons
                .iter_mut()
                .try_for_each(|daemon| daemon.kill())?;
            for number in 0..2 {
                bed.daemons[number] = bed.hosts[number].start_flanneld(&bed.options[number])?;
            }
            bed.daemons
                .iter_mut()
                .try_for_each(|daemon| daemon.wait_ready(STOP).map(drop))?;
            let ready = began.elapsed();
            probes
                .iter()
                .try_for_each(|probe| probe.wait_flowing(STOP).map(drop))?;
            for probe in probes {
                let report = probe.finish()?;
                eprintln!("ready after {ready:.0?}; {report}");
                ensure!(
                    report.longest_outage < ready + AGREED && report.wrong == 0,
                    "ready after {ready:.0?}; {report}"
                );
            }
        }
        bed.require_no_errors()
    })
}
