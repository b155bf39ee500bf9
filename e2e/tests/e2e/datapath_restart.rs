//! Tests that the userspace datapath's device survives a daemon restart with a file descriptor store, and disappears without the store.
//! The tests also switch between kernel vxlan and the userspace datapath, and damage the userspace datapath.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{
    Bed, FileStore, FlanneldOptions, Host, Lab, Monitor, PingOptions, Pod, Probe, ProbeOptions,
    Transfer, TransferOptions, Uplink, ping, until, until_ok,
};

use crate::datapath::engines::{Engine, UDP, VXLAN, WIREGUARD, WIREGUARD_AUTO};
use crate::healing::scenarios;

/// Deadline of a wait: all tests start at once, so an operation that needs one second may need half a minute.
const SOON: Duration = Duration::from_secs(120);
const MILLISECOND: Duration = Duration::from_millis(1);

const KERNEL: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
/// nftables rules of a router that sends no ICMP errors.
const SILENT: &str = "table ip silent {\n chain out {\n type filter hook output priority 0; policy accept;\n meta l4proto icmp drop\n }\n}\n";

scenarios! { restart_without_a_store;
    udp_restart_without_a_store_begins_anew => &UDP,
    vxlan_restart_without_a_store_begins_anew => &VXLAN,
    wireguard_restart_without_a_store_begins_anew => &WIREGUARD,
}

// The durations are how long packets may be lost: ten times the goals. WireGuard's sessions end with the process. Until there are new ones,
// packets of the former sessions cannot be decrypted.
scenarios! { restart_with_a_store;
    udp_restart_with_a_store_loses_next_to_nothing => (&UDP, UDP.v4(), "1", 200 * MILLISECOND),
    vxlan_restart_with_a_store_loses_next_to_nothing => (&VXLAN, VXLAN.v4(), "2", 200 * MILLISECOND),
    wireguard_restart_with_a_store_loses_little => (&WIREGUARD, WIREGUARD.v4(), "2", 3000 * MILLISECOND),
    wireguard_auto_restart_with_a_store_loses_little => (&WIREGUARD_AUTO, WIREGUARD_AUTO.dual(), "1", 3000 * MILLISECOND),
}

scenarios! { backend_or_mode_changes;
    changed_backend_or_mode_replaces_devices_without_a_store => false,
    changed_backend_or_mode_replaces_devices_with_a_store => true,
}

scenarios! { port_is_taken;
    udp_port_in_use_is_reported => &UDP,
    vxlan_port_in_use_is_reported => &VXLAN,
    wireguard_port_in_use_is_reported => &WIREGUARD,
}

scenarios! { heals_under_load;
    udp_heals_under_load => &UDP,
    vxlan_heals_under_load => &VXLAN,
    wireguard_heals_under_load => &WIREGUARD,
}

scenarios! { narrow_underlay_is_passed;
    udp_passes_a_narrow_underlay_that_reports_nothing => &UDP,
    vxlan_passes_a_narrow_underlay_that_reports_nothing => &VXLAN,
    wireguard_passes_a_narrow_underlay_that_reports_nothing => &WIREGUARD,
}

/// How a daemon ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Asked,
    Killed,
}

fn end(bed: &mut Bed, number: usize, how: End) -> Result<()> {
    match how {
        End::Asked => bed.daemons[number].terminate().map(drop),
        End::Killed => bed.daemons[number].kill(),
    }
}

/// Starts a stream of packets in each direction between the two pods, and waits until packets arrive in both directions.
fn streams(bed: &Bed, interval: Duration) -> Result<[Probe; 2]> {
    let options = ProbeOptions::default().interval(interval);
    let probes = [
        Probe::start(&bed.pods[1], &bed.pods[0], &options)?,
        Probe::start(&bed.pods[0], &bed.pods[1], &options)?,
    ];
    probes
        .iter()
        .try_for_each(|probe| probe.wait_flowing().map(drop))?;
    Ok(probes)
}

/// Checks that a daemon without a file descriptor store leaves no device and no routes, and that packets pass again after the next start.
fn restart_without_a_store(engine: &Engine) -> Result<()> {
    let device = engine.device;
    Lab::run(&format!("restart {}", engine.name), |lab| {
        let mut bed = Bed::start(lab, 2, &engine.v4(), |_, options| options)?;
        for how in [End::Asked, End::Killed] {
            let probes = streams(&bed, 5 * MILLISECOND)?;
            end(&mut bed, 0, how)?;
            let gone = || {
                bed.hosts[0]
                    .netns()
                    .link(device)
                    .is_ok_and(|link| link.is_none())
            };
            until("the device goes with its process", gone)?;
            let routes = bed.hosts[0].netns().routes()?;
            ensure!(
                !routes
                    .iter()
                    .any(|route| route.dev.as_deref() == Some(device)),
                "routes without their device"
            );
            let began = Instant::now();
            bed.daemons[0] = bed.hosts[0].flanneld(&bed.options[0])?;
            let ready = began.elapsed();
            probes
                .iter()
                .try_for_each(|probe| probe.wait_flowing().map(drop))?;
            eprintln!(
                "{device} {how:?}: ready after {ready:?}, packets pass after {:?}",
                began.elapsed()
            );
            for probe in probes {
                let report = probe.finish()?;
                ensure!(report.wrong == 0 && report.duplicates == 0, "{report}");
            }
        }
        bed.require_no_errors()
    })
}

/// Sockets at both ends of a TCP connection between pods.
struct Connection {
    ends: [TcpStream; 2],
}

impl Connection {
    fn start(from: &Pod, to: &Pod) -> Result<Connection> {
        let listener = to
            .netns()
            .run(|| TcpListener::bind((to.address().unwrap(), 0)))??;
        let address = listener.local_addr()?;
        let near = from
            .netns()
            .run(|| TcpStream::connect_timeout(&address, SOON))??;
        let (far, _) = listener.accept()?;
        for end in [&near, &far] {
            end.set_read_timeout(Some(SOON))?;
        }
        Ok(Connection { ends: [near, far] })
    }

    /// Sends a text in each direction and checks that it arrives.
    fn exchange(&mut self, what: &str) -> Result<()> {
        for (from, to) in [(0, 1), (1, 0)] {
            self.ends[from].write_all(what.as_bytes())?;
            let mut received = vec![0; what.len()];
            self.ends[to]
                .read_exact(&mut received)
                .with_context(|| format!("the connection does not survive: {what}"))?;
            ensure!(received == what.as_bytes());
        }
        Ok(())
    }
}

fn file_store(lab: &Lab, options: FlanneldOptions) -> Result<(FileStore, FlanneldOptions)> {
    let store = FileStore::start(&lab.folder("")?.join("notify"))?;
    let options = options.file_store(&store);
    Ok((store, options))
}

/// Checks that the device, its sockets, its routes and the pods' connections survive restarts of a daemon with a file descriptor store.
fn restart_with_a_store(
    (engine, net_conf, queues, lost_at_most): (&Engine, String, &str, Duration),
) -> Result<()> {
    let device = engine.device;
    Lab::run(&format!("handover {}", engine.name), |lab| {
        let mut bed = Bed::start(lab, 2, &net_conf, |_, options| {
            options.env("FLANNELD_DATAPATH_QUEUES", queues)
        })?;
        let (store, options) = file_store(lab, bed.options[0].clone())?;
        end(&mut bed, 0, End::Asked)?;
        bed.daemons[0] = bed.hosts[0].flanneld(&options)?;
        bed.reach()?;
        let index = |bed: &Bed| {
            let link = bed.hosts[0].netns().link(device)?;
            anyhow::Ok(link.context("the device is gone")?.ifindex)
        };
        let before = index(&bed)?;
        let routes = bed.hosts[0].netns().exec("ip", &["route"])?;
        let mut monitor = Monitor::ip(&bed.hosts[0], &["link"])?;
        let mut connection = Connection::start(&bed.pods[0], &bed.pods[1])?;
        for how in [End::Asked, End::Killed, End::Asked] {
            connection.exchange("before")?;
            require_kept(&store, device)?;
            // WireGuard's sessions also need the new process, and its start time depends on the machine.
            let starting = engine.is_wireguard();
            restart_under_load(&mut bed, &options, device, how, (lost_at_most, starting))?;
            connection.exchange("after")?;
            ensure!(index(&bed)? == before, "{how:?}: another device");
        }
        ensure!(bed.hosts[0].netns().exec("ip", &["route"])? == routes);
        let reports = monitor.reports()?;
        let lost: Vec<_> = reports
            .lines()
            .filter(|line| line.contains("Deleted"))
            .collect();
        ensure!(lost.is_empty(), "{}", lost.join("\n"));
        let log = bed.daemons[0].log();
        ensure!(
            log.contains("adopted the device and sockets") && !log.contains("opening a new file"),
            "not all was taken over: {log}"
        );
        bed.require_no_errors()
    })
}

/// Checks that the store has the file descriptors of the device and of its sockets.
fn require_kept(store: &FileStore, device: &str) -> Result<()> {
    let names: Vec<_> = store.files().into_iter().map(|(name, _)| name).collect();
    for kind in ["tun", "udp"] {
        ensure!(
            names.iter().any(|name| *name == format!("{kind}.{device}")),
            "kept: {names:?}"
        );
    }
    Ok(())
}

/// Interval of packets. The queues of the device and of the socket can store all packets that arrive every 10 ms during a start of several seconds.
const RESTART_INTERVAL: Duration = Duration::from_millis(10);

/// Restarts the first host's daemon while packets flow in both directions. Allows packet loss for `lost_at_most`.
/// If `starting` is true, also allows packet loss until the new process is ready.
fn restart_under_load(
    bed: &mut Bed,
    options: &FlanneldOptions,
    device: &str,
    how: End,
    (lost_at_most, starting): (Duration, bool),
) -> Result<()> {
    let probes = streams(bed, RESTART_INTERVAL)?;
    let began = Instant::now();
    end(bed, 0, how)?;
    let ended = began.elapsed();
    ensure!(
        bed.hosts[0].netns().link(device)?.is_some(),
        "{how:?}: {device} went with its process"
    );
    bed.daemons[0] = bed.hosts[0].flanneld(options)?;
    let ready = began.elapsed();
    probes
        .iter()
        .try_for_each(|probe| probe.wait_flowing().map(drop))?;
    for probe in probes {
        let report = probe.finish()?;
        eprintln!("{device} {how:?}: ended after {ended:.0?}, ready after {ready:.0?}; {report}");
        let longest = lost_at_most + if starting { ready } else { Duration::ZERO };
        ensure!(
            RESTART_INTERVAL * report.lost as u32 <= longest,
            "{how:?}: {report}"
        );
        ensure!(
            report.wrong == 0 && report.duplicates == 0,
            "{how:?}: {report}"
        );
    }
    // The peers were in the table before the daemon read the packets that waited in the device and the socket.
    let (_, metrics) = bed.daemons[0].get("/metrics")?;
    let astray = metrics.lines().find(|line| {
        line.contains("reason=\"no_route\"") || line.contains("reason=\"unknown_peer\"")
    });
    ensure!(astray.is_none(), "{how:?}: {astray:?}");
    Ok(())
}

/// Lists flannel's devices on a host, with their names and link types.
fn devices(host: &Host) -> Result<Vec<(String, String)>> {
    let kind = |link: &lab::observe::Link| {
        link.linkinfo["info_kind"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let links = host.netns().links()?;
    Ok(links
        .iter()
        .filter(|link| link.ifname.starts_with("flannel"))
        .map(|link| (link.ifname.clone(), kind(link)))
        .collect())
}

/// Checks that a daemon replaces the device of an earlier daemon that had another backend or mode. If `kept` is
/// true, a file descriptor store keeps the devices' file descriptors.
fn backend_or_mode_changes(kept: bool) -> Result<()> {
    Lab::run(if kept { "modes kept" } else { "modes" }, |lab| {
        let mut bed = Bed::start(lab, 2, &UDP.v4(), |_, options| options)?;
        let folder = lab.folder("")?;
        let stores = (0..2)
            .map(|number| FileStore::start(&folder.join(format!("notify{number}"))))
            .collect::<Result<Vec<_>>>()?;
        let steps = [
            (UDP.v4(), "flannel0", "tun"),
            (KERNEL.to_owned(), "flannel.1", "vxlan"),
            (VXLAN.v4(), "flannel.1", "tun"),
            (WIREGUARD.v4(), "flannel-wg", "tun"),
            (KERNEL.to_owned(), "flannel.1", "vxlan"),
        ];
        for (step, (net_conf, device, kind)) in steps.into_iter().enumerate() {
            bed.store.configure(&net_conf)?;
            let how = if step % 2 == 0 {
                End::Asked
            } else {
                End::Killed
            };
            for (number, store) in stores.iter().enumerate() {
                end(&mut bed, number, how)?;
                let mut options = bed.options[number].clone();
                if kept {
                    options = options.file_store(store);
                }
                bed.daemons[number] = bed.hosts[number].flanneld(&options)?;
            }
            require_one_device(&bed, device, kind).with_context(|| format!("step {step}"))?;
            if kept {
                let right = |store: &FileStore| match kind {
                    "tun" => store.files().len() >= 2,
                    _ => store.files().is_empty(),
                };
                until("only what is used is kept", || stores.iter().all(right))?;
            }
        }
        for daemon in &bed.daemons {
            let log = daemon.log();
            let alarm = log
                .lines()
                .find(|line| line.contains("in use") || line.contains("cannot bind"));
            ensure!(alarm.is_none(), "a false alarm: {alarm:?}");
        }
        bed.require_no_errors()
    })
}

/// Waits until `device` is the only flannel device of each host, and sends packets through the device.
fn require_one_device(bed: &Bed, device: &str, kind: &str) -> Result<()> {
    let wanted = vec![(device.to_owned(), kind.to_owned())];
    for host in &bed.hosts {
        until_ok("the device of the other mode is gone", || {
            let devices = devices(host)?;
            ensure!(devices == wanted, "{} has {devices:?}", host.name());
            Ok(())
        })?;
    }
    // The MTU differs from that of the earlier device.
    bed.reach()?;
    Transfer::run(
        &bed.pods[0],
        &bed.pods[1],
        500_000,
        &TransferOptions::default(),
    )
    .map(drop)
}

fn port_is_taken(engine: &Engine) -> Result<()> {
    Lab::run(&format!("port {}", engine.name), |lab| {
        let mut bed = Bed::start(lab, 2, &engine.v4(), |_, options| options)?;
        end(&mut bed, 0, End::Asked)?;
        let address = bed.hosts[0].v4()?;
        let taken = bed.hosts[0]
            .netns()
            .run(|| UdpSocket::bind((address, engine.port)))??;
        bed.daemons[0] = bed.hosts[0].start_flanneld(&bed.options[0])?;
        // WireGuard listens on all addresses.
        let bound = if engine.is_wireguard() {
            Ipv4Addr::UNSPECIFIED
        } else {
            address
        };
        let wanted = format!("cannot bind UDP {bound}:{}", engine.port);
        until("the port is named", || {
            bed.daemons[0].log().contains(&wanted)
        })
        .with_context(|| format!("{wanted:?} is not in the log of {}", engine.device))?;
        drop(taken);
        // The daemon becomes ready when the port is free, whether it has ended, ends now or tries once more.
        until_ok("the node comes with the port", || {
            if !bed.daemons[0].is_running() {
                bed.daemons[0] = bed.hosts[0].start_flanneld(&bed.options[0])?;
            }
            ensure!(bed.daemons[0].is_ready(), "{}", bed.daemons[0].log_tail(20));
            Ok(())
        })?;
        bed.reach()
    })
}

fn heals_under_load(engine: &Engine) -> Result<()> {
    let device = engine.device;
    Lab::run(&format!("load {}", engine.name), |lab| {
        let bed = Bed::start(lab, 2, &engine.v4(), |_, options| {
            options.arg("--audit-interval=0")
        })?;
        let damages = [
            format!("ip link del {device}"),
            format!("ip link set {device} down"),
            format!("ip link set {device} mtu 1300"),
            format!("ip link del {device}; ip link add {device} type dummy || true"),
            "ip address del 192.168.56.101/24 dev enp0s8; ip address add 192.168.56.111/24 dev enp0s8".to_owned(),
            "ip address add 192.168.56.101/24 dev enp0s8; ip address del 192.168.56.111/24 dev enp0s8; ip address replace 192.168.56.101/24 dev enp0s8".to_owned(),
        ];
        damages
            .iter()
            .try_for_each(|damage| heals_after(&bed, device, damage))?;
        bed.require_no_errors()
    })
}

/// Runs the script `damage` on the first host. Checks that packets pass again and that the daemon restores the device's MTU.
fn heals_after(bed: &Bed, device: &str, damage: &str) -> Result<()> {
    let probes = streams(bed, MILLISECOND)?;
    let began = Instant::now();
    bed.hosts[0].netns().sh(damage)?;
    // Packets that were sent before the damage must not count as flowing after it, and no event marks the last of them.
    std::thread::sleep(20 * MILLISECOND);
    for probe in &probes {
        probe
            .wait_flowing()
            .with_context(|| format!("after {damage:?}; devices {:?}", devices(&bed.hosts[0])))?;
    }
    let healed = began.elapsed();
    for probe in probes {
        let report = probe.finish()?;
        eprintln!("{damage}: {healed:.0?}; {report}");
        ensure!(report.wrong == 0, "{damage}: {report}");
    }
    let mtu = || {
        let link = bed.hosts[0].netns().link(device);
        link.is_ok_and(|link| link.is_some_and(|link| link.mtu == bed.pods[0].mtu()))
    };
    until("the MTU is back", mtu).map(drop)
}

/// Writes and deletes ten thousand leases while two nodes' pods exchange packets, and checks that the pods lose at most one packet in 1000.
#[test]
fn lease_churn_loses_almost_no_packet() -> Result<()> {
    const LEASES: u32 = 10_000;
    Lab::run("churn", |lab| {
        let net_conf = r#"{"Network":"10.0.0.0/8","SubnetLen":24,"SubnetMin":"10.5.0.0","SubnetMax":"10.5.9.0","Backend":{"Type":"udp"}}"#;
        let bed = Bed::start(lab, 2, net_conf, |_, options| options)?;
        let leases = || bed.daemons[0].metric("flannel_leases").unwrap_or(0.0) as u32;
        let folder = bed.leases.join("subnets");
        let name =
            |number: u32| folder.join(format!("10.{}.{}.0-24", 100 + number / 250, number % 250));
        let probes = streams(&bed, MILLISECOND)?;
        for number in 0..LEASES {
            std::fs::write(
                name(number),
                format!(
                    r#"{{"PublicIP":"172.20.{}.{}","PublicIPv6":null}}"#,
                    number / 250,
                    1 + number % 250
                ),
            )?;
        }
        until("all leases are there", || leases() > LEASES)?;
        for number in 0..LEASES {
            std::fs::remove_file(name(number))?;
        }
        until("all leases are gone", || leases() <= 2)?;
        for probe in probes {
            let report = probe.finish()?;
            eprintln!("{report}");
            ensure!(
                report.lost * 1000 <= report.sent && report.wrong == 0,
                "{report}"
            );
        }
        bed.require_no_errors()
    })
}

/// Checks that packets pass a router whose MTU is smaller than the hosts' MTU, and which sends no ICMP errors. The
/// router fragments outer packets, and TCP transfers complete.
fn narrow_underlay_is_passed(engine: &Engine) -> Result<()> {
    Lab::run(&format!("narrow {}", engine.name), |lab| {
        let (left, right) = (lab.switch("left")?, lab.switch("right")?);
        let router = lab.router(
            "router",
            &[(&left, "192.168.57.1/24"), (&right, "192.168.58.1/24")],
        )?;
        router.netns().ip("route replace 192.168.57.0/24 dev eth0 mtu lock 1400\nroute replace 192.168.58.0/24 dev eth1 mtu lock 1400")?;
        router.netns().feed("nft", &["-f", "-"], SILENT)?;
        let uplink = |lan, net: u8| {
            Uplink::new(lan, "enp0s8")
                .address(&format!("192.168.{net}.101/24"))?
                .gateway(&format!("192.168.{net}.1"))
        };
        let hosts = vec![
            lab.host("h1", &[uplink(&left, 57)?])?,
            lab.host("h2", &[uplink(&right, 58)?])?,
        ];
        let bed = Bed::on(lab, &left, hosts, &engine.v4(), |_, options| options)?;
        // Confirms that the path is narrow: a packet that must not be fragmented does not pass, and no router reports it.
        let peer = bed.hosts[1].v4()?.into();
        let bare = |length| {
            ping(
                bed.hosts[0].netns(),
                peer,
                &PingOptions::default().packet(length),
            )
        };
        ensure!(
            bare(1400)?.is_some() && bare(1401)?.is_none(),
            "the underlay's path is not 1400 wide"
        );
        // In the tunnel the packet passes, as two outer fragments.
        let target: IpAddr = bed.pods[1].address()?;
        let full = PingOptions::default().packet(bed.pods[0].mtu());
        until_ok("a packet of full length passes", || {
            ensure!(ping(bed.pods[0].netns(), target, &full)?.is_some());
            Ok(())
        })?;
        for (from, to) in [(0, 1), (1, 0)] {
            let options = TransferOptions::default();
            Transfer::run(&bed.pods[from], &bed.pods[to], 2_000_000, &options)?;
        }
        bed.require_no_errors()
    })
}
