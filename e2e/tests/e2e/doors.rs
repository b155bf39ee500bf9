//! Checks that no attack by an unprivileged local user or by a pod with raw sockets disturbs the daemon.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::{Bed, Lab, Launch, Netns, Process, craft, stdout, texts, throughout, until, until_ok};

use crate::mesh::{PROBES, V4, peer};

/// Arguments of setpriv: user `nobody`, without groups and capabilities.
const NOBODY: [&str; 5] = [
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
];
const HEALTH: u16 = 8081;
const API: u16 = 8474;

/// Test environment in which all attacks run.
struct Scene {
    bed: Bed,
}

type Attack = fn(&mut Scene) -> Result<()>;

/// Attacks by the user `nobody`. Each attack returns an error if it has an effect.
const USER_ATTACKS: &[(&str, Attack)] = &[
    (
        "nobody: hold every name of the daemon's sockets, then wait for its restart",
        names_before_a_start,
    ),
    (
        "nobody: claim the port of the probes while the daemon runs",
        name_of_the_probes_port,
    ),
    ("nobody: make many names, to fill the log", many_names),
    ("nobody: lock the lock in /run", lock),
    ("nobody: connect to the API's socket", socket),
    (
        "nobody: open 500 connections on each port and send half a head",
        half_open,
    ),
    ("nobody: ask 300 times for documents and read none", unread),
    ("nobody: ask in a loop", ask_in_a_loop),
    (
        "nobody: ask under a foreign name, as a web page can",
        foreign_host,
    ),
    (
        "nobody: change something through the API, and fill /run",
        write_through_the_api,
    ),
    (
        "nobody: put links in the place of the daemon's files",
        links,
    ),
    ("nobody: read what is secret", secrets),
    ("nobody: look into the process", process),
    ("nobody: end the process", signals),
    (
        "nobody: send junk to the ports of probes and tunnel",
        junk_from_here,
    ),
];

/// Attacks by a pod.
const POD_ATTACKS: &[(&str, Attack)] = &[
    ("pod: read /status on the node's address", status_from_a_pod),
    (
        "pod: reach 127.0.0.1 of the node by route_localnet",
        route_localnet,
    ),
    (
        "pod: send junk to the ports of probes and tunnels, from forged addresses",
        junk_from_a_pod,
    ),
    ("pod: ask and answer in a peer's name", forged_probes),
    ("pod: forge ICMP errors about probes", forged_errors),
    ("pod: flood with pings", pings),
    ("pod: claim the addresses of node and peer by ARP", arp),
    (
        "pod: send a packet of the tunnel to the node itself",
        tunnel_to_the_node,
    ),
    (
        "pod: send a packet of the tunnel to a peer's underlay address",
        tunnel_to_a_peer,
    ),
];

#[test]
fn daemon_withstands_an_unprivileged_user() {
    withstands("doors-user", USER_ATTACKS).unwrap();
}

#[test]
fn daemon_withstands_a_pod() {
    withstands("doors-pod", POD_ATTACKS).unwrap();
}

/// Runs the attacks, and checks after each attack that the daemon is healthy. Returns an error that names the attacks that had an effect.
fn withstands(title: &str, attacks: &[(&str, Attack)]) -> Result<()> {
    Lab::run(title, |lab| {
        let bed = Bed::start(lab, 2, V4, |_, options| {
            options.healthz_port(Some(HEALTH)).arg("--encap-bar-pods")
        })?;
        let mut scene = Scene { bed };
        scene.is_well()?;
        let mut open = Vec::new();
        for (what, attack) in attacks {
            let begun = Instant::now();
            let outcome = attack(&mut scene).and_then(|()| scene.is_well());
            println!(
                "{what}: {} ({:.1} s)",
                outcome.as_ref().map_or_else(
                    |error| format!("OPEN: {error:#}"),
                    |()| "refused".to_owned()
                ),
                begun.elapsed().as_secs_f64()
            );
            open.extend(outcome.err().map(|error| format!("{what}: {error:#}")));
        }
        ensure!(
            open.is_empty(),
            "{} attack(s) had an effect:\n{}",
            open.len(),
            open.join("\n")
        );
        scene.bed.require_no_errors()
    })
}

impl Scene {
    fn here(&self) -> &Netns {
        self.bed.hosts[0].netns()
    }

    /// Runs a shell script as the user `nobody`.
    fn nobody(&self, script: &str) -> Result<Output> {
        self.here()
            .output("setpriv", &[&NOBODY[..], &["sh", "-c", script]].concat())
    }

    /// Checks that the user `nobody` cannot run the script, because of a permission error.
    fn refused(&self, script: &str) -> Result<()> {
        let output = self.nobody(script)?;
        let text = texts(&output);
        ensure!(
            !output.status.success()
                && (text.contains("ermission denied") || text.contains("not permitted")),
            "{script}: {text:?}"
        );
        Ok(())
    }

    /// Runs a Perl script as the user `nobody`, until the caller drops the returned process. Waits until the script prints `ready`.
    fn perl(&self, name: &str, script: &str) -> Result<Process> {
        let launch = Launch::new("setpriv").args(NOBODY).args([
            "perl",
            "-MSocket",
            "-e",
            &format!("$| = 1; {script}; print \"ready\\n\"; sleep 600;"),
        ]);
        let process = self.bed.hosts[0].spawn(name, &launch)?;
        until(name, || process.log().contains("ready"))?;
        Ok(process)
    }

    /// Checks that the daemon is ready and reaches its peer, and that pods reach each other.
    fn is_well(&self) -> Result<()> {
        until_ok("the daemon is well", || {
            let (code, text) = self.bed.daemons[0].get("/readyz")?;
            ensure!(code == 200, "{code}: {text}");
            let (state, all) = peer(&self.bed, 0, 1, false)?;
            ensure!(state == "well" || state == "slow", "{all}");
            Ok(())
        })?;
        self.bed.reach()
    }

    fn probes_are_on(&self) -> Result<()> {
        let (_, text) = self.bed.daemons[0].api("/api/v1/node")?;
        let node: serde_json::Value = serde_json::from_str(&text)?;
        ensure!(
            node["mesh"]["problems"]
                .as_array()
                .is_none_or(Vec::is_empty),
            "{}",
            node["mesh"]["problems"]
        );
        Ok(())
    }
}

/// Returns a Perl script that listens on abstract sockets.
fn listening(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    format!(
        "for my $n ({}) {{ socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die; bind($s, pack_sockaddr_un(\"\\0$n\")) or die \"$n: $!\"; listen($s, 5) or die; push @s, $s }}",
        names.join(",")
    )
}

/// Returns the names of the abstract sockets of daemons on the host.
fn names(netns: &Netns) -> Result<Vec<String>> {
    let table = netns.sh("cat /proc/net/unix")?;
    Ok(table
        .lines()
        .filter_map(|line| {
            line.split_once(" @flannel-rs")
                .map(|(_, rest)| format!("flannel-rs{rest}"))
        })
        .collect())
}

fn names_before_a_start(scene: &mut Scene) -> Result<()> {
    let mut wanted = names(scene.here())?;
    ensure!(wanted.len() >= 5, "{wanted:?}");
    scene.bed.daemons[0].terminate()?;
    wanted.extend(["flannel-rs.rules/nft", "flannel-rs.rules/iptables"].map(str::to_owned));
    let squatter = scene.perl("squatter", &listening(&wanted))?;
    scene.bed.daemons[0] = scene.bed.hosts[0].flanneld(&scene.bed.options[0])?;
    let log = scene.bed.daemons[0].log();
    let line = format!("pid={}", squatter.pid());
    let lines = log
        .lines()
        .filter(|text| text.contains("another user"))
        .collect::<Vec<_>>();
    ensure!(
        lines.iter().any(|text| text.contains("program=")
            && text.contains("perl")
            && text.contains("uid=")),
        "{line}: {lines:#?}\n{log}"
    );
    scene.probes_are_on()?;
    // A second daemon that root starts is still refused.
    let mut second = scene.bed.hosts[0].start_flanneld(
        &scene.bed.options[0]
            .clone()
            .second("second")
            .healthz_port(None),
    )?;
    ensure!(
        !second.wait()?.success() && second.log().contains("another flanneld"),
        "{}",
        second.log_tail(5)
    );
    scene.is_well()
}

fn name_of_the_probes_port(scene: &mut Scene) -> Result<()> {
    let _squatter = scene.perl(
        "port",
        &listening(&[format!("flannel-rs.taken/port/{PROBES}/x")]),
    )?;
    // Connections to the lent socket make the daemon check at once.
    let lent = names(scene.here())?
        .into_iter()
        .find(|name| name.starts_with("flannel-rs.lent/"))
        .context("no lent socket")?;
    let _asker = scene.perl(
        "asker",
        &format!("for (1..50) {{ socket(my $s, PF_UNIX, SOCK_STREAM, 0); connect($s, pack_sockaddr_un(\"\\0{lent}\")) or die \"$!\"; }}"),
    )?;
    until_ok("the name is noticed", || {
        ensure!(
            scene.bed.daemons[0]
                .log()
                .contains("would have stopped probes"),
            "no line"
        );
        Ok(())
    })?;
    throughout(Duration::from_secs(3), "probes stay on", || {
        scene.probes_are_on()
    })
}

fn many_names(scene: &mut Scene) -> Result<()> {
    let before = scene.bed.daemons[0].log().lines().count();
    let names: Vec<String> = (0..500)
        .map(|number| format!("flannel-rs.taken/port/{PROBES}/n{number}"))
        .collect();
    let _squatter = scene.perl("many", &listening(&names))?;
    throughout(Duration::from_secs(12), "the log stays short", || {
        let lines = scene.bed.daemons[0].log().lines().count() - before;
        ensure!(lines <= 30, "{lines} lines");
        Ok(())
    })
}

fn file(scene: &Scene, name: &str) -> String {
    scene.bed.daemons[0]
        .subnet_file()
        .with_file_name(name)
        .display()
        .to_string()
}

/// Makes the folder of the daemon's files accessible to all users, as /run is. Returns its path.
fn opened(scene: &Scene) -> Result<String> {
    let folder = scene.bed.daemons[0]
        .subnet_file()
        .parent()
        .context("a folder")?;
    for above in folder
        .ancestors()
        .filter(|above| above.starts_with(std::env::temp_dir()) || above.starts_with("/run"))
    {
        let mode = std::fs::metadata(above)?.permissions().mode();
        std::fs::set_permissions(above, std::fs::Permissions::from_mode(mode | 0o055))?;
    }
    Ok(folder.display().to_string())
}

fn lock(scene: &mut Scene) -> Result<()> {
    opened(scene)?;
    let name = scene.bed.daemons[0]
        .subnet_file()
        .file_name()
        .context("a name")?
        .to_string_lossy()
        .into_owned();
    let lock = file(scene, &format!(".{name}.lock"));
    ensure!(Path::new(&lock).exists());
    scene.refused(&format!("exec 9<'{lock}' && flock -x 9"))
}

fn socket(scene: &mut Scene) -> Result<()> {
    let path = format!(
        "{}.sock",
        opened(scene).map(|_| scene.bed.daemons[0].subnet_file().display().to_string())?
    );
    scene.refused(&format!("perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un(\"{path}\")) or die \"$!\"'"))
}

fn connections(count: usize, port: u16, request: &str) -> String {
    format!(
        "for (1..{count}) {{ socket(my $s, PF_INET, SOCK_STREAM, 0) or die; setsockopt($s, SOL_SOCKET, SO_RCVBUF, 4096); \
         connect($s, pack_sockaddr_in({port}, inet_aton('127.0.0.1'))) or last; syswrite($s, \"{request}\"); push @s, $s }}"
    )
}

fn half_open(scene: &mut Scene) -> Result<()> {
    let flood = [HEALTH, API]
        .map(|port| connections(500, port, "GET /live"))
        .join("; ");
    let _clients = scene.perl("half-open", &format!("$SIG{{PIPE}} = 'IGNORE'; {flood}"))?;
    throughout(Duration::from_secs(2), "probes are answered", || {
        let (code, text) = scene.bed.daemons[0].get("/livez")?;
        ensure!(code == 200, "{code}: {text}");
        Ok(())
    })
}

/// Returns the number of bytes in the send queues of all TCP connections to a port of the host.
fn kept(scene: &Scene, port: u16) -> Result<usize> {
    let table = scene.here().sh("cat /proc/net/tcp /proc/net/tcp6")?;
    let columns = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = columns.filter(|columns| {
        columns
            .get(1)
            .is_some_and(|local| local.ends_with(&format!(":{port:04X}")))
            && columns[3] != "0A"
    });
    Ok(ours
        .filter_map(|columns| usize::from_str_radix(columns.get(4)?.split(':').next()?, 16).ok())
        .sum())
}

fn unread(scene: &mut Scene) -> Result<()> {
    let asks = [(HEALTH, "/metrics"), (API, "/api/v1/node")];
    let flood = asks
        .map(|(port, path)| {
            connections(
                150,
                port,
                &format!("GET {path} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"),
            )
        })
        .join("; ");
    let memory = scene.bed.daemons[0].memory()?;
    let _clients = scene.perl("unread", &format!("$SIG{{PIPE}} = 'IGNORE'; {flood}"))?;
    ensure!(scene.bed.daemons[0].get("/livez")?.0 == 200);
    let kept_now = kept(scene, HEALTH)? + kept(scene, API)?;
    let grown = scene.bed.daemons[0].memory()?.saturating_sub(memory);
    ensure!(
        2 * kept_now as u64 + grown < 16 << 20,
        "the kernel keeps {kept_now} bytes, the daemon {grown}"
    );
    until_ok("nothing is kept", || {
        let kept = kept(scene, HEALTH)? + kept(scene, API)?;
        ensure!(kept == 0, "{kept}");
        Ok(())
    })
}

/// Requests a path and returns the whole response as text.
fn ask(netns: &Netns, address: SocketAddr, host: &str, path: &str) -> Result<String> {
    let ask = || -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    netns.run(ask)?
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn ask_in_a_loop(scene: &mut Scene) -> Result<()> {
    let begun = Instant::now();
    for _ in 0..4 {
        ensure!(
            ask(scene.here(), local(API), "localhost", "/api/v1/node")?.starts_with("HTTP/1.1 200")
        );
    }
    ensure!(
        begun.elapsed() >= Duration::from_secs(3),
        "four documents in {:?}",
        begun.elapsed()
    );
    Ok(())
}

fn foreign_host(scene: &mut Scene) -> Result<()> {
    for (port, path, code) in [
        (API, "/api/v1/node", 421),
        (HEALTH, "/status", 421),
        (HEALTH, "/livez", 200),
        (HEALTH, "/metrics", 200),
    ] {
        let answer = ask(scene.here(), local(port), "evil.example", path)?;
        ensure!(
            answer.starts_with(&format!("HTTP/1.1 {code} ")),
            "{path}: {answer}"
        );
    }
    Ok(())
}

fn write_through_the_api(scene: &mut Scene) -> Result<()> {
    let folder = opened(scene)?;
    let size = |scene: &Scene| scene.here().sh(&format!("ls -A '{folder}' | wc -l"));
    let before = size(scene)?;
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        let script = format!(
            "socket(S, PF_INET, SOCK_STREAM, 0); connect(S, pack_sockaddr_in({API}, inet_aton(\"127.0.0.1\"))) or die; \
             syswrite(S, \"{method} /api/v1/node HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 9\\r\\n\\r\\nxxxxxxxxx\"); print <S>"
        );
        let answer = scene.here().output("perl", &["-MSocket", "-e", &script])?;
        let answer = stdout(&answer);
        ensure!(answer.starts_with("HTTP/1.1 405"), "{method}: {answer}");
    }
    scene.refused(&format!("head -c 1000 /dev/zero > '{folder}/fill'"))?;
    ensure!(size(scene)? == before);
    Ok(())
}

fn links(scene: &mut Scene) -> Result<()> {
    let folder = opened(scene)?;
    let env = scene.bed.daemons[0].subnet_file().display().to_string();
    for script in [
        format!("ln -s /etc/passwd '{folder}/link'"),
        format!("ln -sf /etc/passwd '{env}'"),
        format!("mv '{env}' '{env}.old'"),
        format!("echo x >> '{env}'"),
        format!("rm -f '{env}.sock'"),
    ] {
        scene.refused(&script)?;
    }
    Ok(())
}

fn secrets(scene: &mut Scene) -> Result<()> {
    let folder = opened(scene)?;
    // All users may read what CNI plugins need; the rest is for root only.
    let listed = scene.nobody(&format!(
        "cd '{folder}' && for f in $(ls -A); do [ -r $f ] && [ -f $f ] && echo $f; done; true"
    ))?;
    let readable = stdout(&listed);
    let name = scene.bed.daemons[0]
        .subnet_file()
        .file_name()
        .context("a name")?
        .to_string_lossy()
        .into_owned();
    let others: Vec<&str> = readable
        .lines()
        .filter(|file| *file != name && !file.ends_with(".log"))
        .collect();
    ensure!(others.is_empty(), "{others:?}");
    Ok(())
}

fn process(scene: &mut Scene) -> Result<()> {
    let pid = scene.bed.daemons[0].pid();
    for what in [
        format!("cat /proc/{pid}/environ"),
        format!("head -c 1 /proc/{pid}/mem"),
        format!("cat /proc/{pid}/maps"),
        format!("ls /proc/{pid}/fd"),
    ] {
        scene.refused(&what)?;
    }
    // System call number of ptrace; 0x4206 below is PTRACE_SEIZE.
    let ptrace = if cfg!(target_arch = "x86_64") {
        101
    } else {
        117
    };
    scene.refused(&format!(
        "perl -e 'syscall({ptrace}, 0x4206, {pid}, 0, 0) == 0 or die \"$!\"'"
    ))
}

fn signals(scene: &mut Scene) -> Result<()> {
    let pid = scene.bed.daemons[0].pid();
    for signal in ["TERM", "KILL", "STOP", "HUP"] {
        scene.refused(&format!("kill -{signal} {pid}"))?;
    }
    Ok(())
}

fn junk_from_here(scene: &mut Scene) -> Result<()> {
    let own = scene.bed.hosts[0].v4()?;
    let send = |port| {
        format!(
            "for (1..20000) {{ send(S, \"flpr\\x01\" . chr($_ % 6) . (\"x\" x ($_ % 1200)), 0, pack_sockaddr_in({port}, inet_aton(\"{own}\"))) }}"
        )
    };
    let script = format!(
        "socket(S, PF_INET, SOCK_DGRAM, 0) or die; {}; {}; {}",
        send(PROBES),
        send(8472),
        send(51820)
    );
    scene.perl("junk", &script).map(drop)
}

fn status_from_a_pod(scene: &mut Scene) -> Result<()> {
    let (own, other) = (scene.bed.hosts[0].v4()?, scene.bed.hosts[1].v4()?);
    let gateway = scene.bed.daemons[0]
        .subnet_env()?
        .subnet
        .context("a subnet")?
        .addr();
    for (netns, address) in [
        (scene.bed.pods[0].netns(), own),
        (scene.bed.pods[0].netns(), gateway),
        (scene.bed.hosts[1].netns(), own),
    ] {
        let address = SocketAddr::new(IpAddr::V4(address), HEALTH);
        let answer = ask(netns, address, &address.to_string(), "/status")?;
        ensure!(
            answer.starts_with("HTTP/1.1 200") && answer.contains("\"counts\""),
            "{answer}"
        );
        ensure!(
            !answer.contains(&other.to_string())
                && !answer.contains("10.244.")
                && !answer.contains("findings"),
            "{answer}"
        );
        ensure!(ask(netns, address, "evil.example", "/status")?.starts_with("HTTP/1.1 421"));
        ensure!(
            ask(
                netns,
                SocketAddr::new(address.ip(), API),
                "localhost",
                "/api/v1/node"
            )
            .is_err()
        );
    }
    let all = ask(scene.here(), local(HEALTH), "localhost", "/status")?;
    ensure!(all.contains("10.244."), "{all}");
    Ok(())
}

fn route_localnet(scene: &mut Scene) -> Result<()> {
    let gateway = scene.bed.daemons[0]
        .subnet_env()?
        .subnet
        .context("a subnet")?
        .addr();
    scene
        .here()
        .sysctl("net/ipv4/conf/all/route_localnet", "1")?;
    let pod = scene.bed.pods[0].netns();
    pod.sysctl("net/ipv4/conf/all/route_localnet", "1")?;
    pod.sh("ip rule add pref 1 lookup 77; ip rule del pref 0; ip rule add pref 2 lookup local")?;
    pod.sh(&format!(
        "ip route add 127.0.0.1/32 via {gateway} dev eth0 src $(ip -4 -br address show eth0 | awk '{{print $3}}' | cut -d/ -f1) table 77"
    ))?;
    let reached = ask(pod, local(API), "localhost", "/api/v1/node");
    let status = ask(pod, local(HEALTH), "localhost", "/status");
    pod.sh("ip route flush table 77")?;
    scene
        .here()
        .sysctl("net/ipv4/conf/all/route_localnet", "0")?;
    if let Ok(answer) = reached {
        bail!("{answer}");
    }
    ensure!(
        status
            .as_ref()
            .is_ok_and(|status| status.contains("\"counts\"") && !status.contains("10.244.")),
        "{status:?}"
    );
    Ok(())
}

/// Returns the underlay address and the overlay address of each of the two nodes.
fn addresses(scene: &Scene) -> Result<[[IpAddr; 2]; 2]> {
    let of = |node: usize| -> Result<[IpAddr; 2]> {
        let overlay = scene.bed.daemons[node]
            .subnet_env()?
            .subnet
            .context("a subnet")?
            .network();
        Ok([scene.bed.hosts[node].v4()?.into(), overlay.into()])
    };
    Ok([of(0)?, of(1)?])
}

fn junk_from_a_pod(scene: &mut Scene) -> Result<()> {
    let [own, theirs] = addresses(scene)?;
    let mut packets = Vec::new();
    for number in 0..3000usize {
        let payload = vec![number as u8; number % 1200];
        for port in [PROBES, 8472, 51820] {
            let from = SocketAddr::new(theirs[number % 2], port);
            packets.push(craft::udp_packet(
                from,
                SocketAddr::new(own[number / 2 % 2], port),
                64,
                &payload,
            ));
        }
    }
    send(scene, &packets)
}

/// Sends packets from the first pod. Ignores send errors, for example if the pod's queue is full.
fn send(scene: &Scene, packets: &[Vec<u8>]) -> Result<()> {
    for some in packets.chunks(64) {
        let _ = craft::send_raw(scene.bed.pods[0].netns(), some);
    }
    Ok(())
}

/// Returns a probe message from the node instance `from` to the node instance `to`.
fn message(kind: u8, nonce: u64, from: [u8; 8], to: [u8; 8], words: u32) -> Vec<u8> {
    let mut bytes = [
        &b"flpr\x01"[..],
        &[kind],
        &72u16.to_be_bytes(),
        &nonce.to_be_bytes(),
        &from,
        &to,
        &words.to_be_bytes(),
        &words.to_be_bytes(),
    ]
    .concat();
    bytes.resize(72, 0);
    bytes
}

/// Returns the instance of a node, which the function computes from the node's ID and subnet.
fn number(netns: &Netns, id: &str, subnet: &str) -> Result<[u8; 8]> {
    let half = |text: &str| -> Result<[u8; 4]> {
        let sum = netns.sh(&format!("printf %s '{text}' | sha256sum"))?;
        Ok(u32::from_str_radix(sum.get(..8).context("a sum")?, 16)?.to_be_bytes())
    };
    [half(id)?, half(subnet)?]
        .concat()
        .try_into()
        .ok()
        .context("eight bytes")
}

fn forged_probes(scene: &mut Scene) -> Result<()> {
    let [own, theirs] = addresses(scene)?;
    let subnets = [
        scene.bed.daemons[0]
            .subnet_env()?
            .subnet
            .context("a subnet")?,
        scene.bed.daemons[1]
            .subnet_env()?
            .subnet
            .context("a subnet")?,
    ];
    let ids = [0, 1].map(|node| -> Result<[u8; 8]> {
        let (_, text) = scene.bed.daemons[node].api("/api/v1/node")?;
        let document: serde_json::Value = serde_json::from_str(&text)?;
        let id = document["node_id"].as_str().context("no id")?.to_owned();
        number(scene.here(), &id, &subnets[node].trunc().to_string())
    });
    let [of_0, of_1] = ids;
    let (of_0, of_1) = (of_0?, of_1?);
    // The overlay from the peer is cut, so packets that seem to come from there are forged.
    let switch = "table bridge cut { chain c { type filter hook forward priority 0; udp dport 8472 drop; }; }";
    scene.bed.lan.netns().feed("nft", &["-f", "-"], switch)?;
    let verdicts = || {
        Ok::<_, anyhow::Error>([
            peer(&scene.bed, 0, 1, false)?.0,
            peer(&scene.bed, 1, 0, false)?.0,
        ])
    };
    let both = ["overlay-cut".to_owned(), "overlay-cut".to_owned()];
    let cut = until_ok("the overlay is cut", || {
        let states = verdicts()?;
        ensure!(states == both, "{states:?}");
        Ok(())
    });
    let mut nonce = 0;
    let lies = cut.and_then(|()| {
        throughout(Duration::from_secs(20), "the verdict stays", || {
            let mut packets = Vec::new();
            for kind in [1, 2] {
                for words in [0, 1, u32::MAX] {
                    nonce += 1;
                    let at = |ip| SocketAddr::new(ip, PROBES);
                    packets.push(craft::udp_packet(
                        at(theirs[1]),
                        at(own[1]),
                        64,
                        &message(kind, nonce, of_1, of_0, words),
                    ));
                    packets.push(craft::udp_packet(
                        at(theirs[0]),
                        at(own[0]),
                        64,
                        &message(kind, nonce, of_1, of_0, words),
                    ));
                }
            }
            send(scene, &packets)?;
            let states = verdicts()?;
            ensure!(states == both, "{states:?}");
            Ok(())
        })
    });
    scene
        .bed
        .lan
        .netns()
        .exec("nft", &["delete", "table", "bridge", "cut"])?;
    lies
}

fn icmp(kind: u8, code: u8, rest: [u8; 4], inner: &[u8]) -> Vec<u8> {
    let mut bytes = [&[kind, code, 0, 0][..], &rest, inner].concat();
    let sum = bytes.chunks(2).fold(0u32, |sum, pair| {
        sum + (u32::from(pair[0]) << 8) + u32::from(pair.get(1).copied().unwrap_or(0))
    });
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// Returns an IPv4 packet that contains an ICMP message.
fn icmp_packet(from: IpAddr, to: IpAddr, icmp: &[u8]) -> Vec<u8> {
    let packet = craft::udp_packet(
        SocketAddr::new(from, 0),
        SocketAddr::new(to, 0),
        64,
        &vec![0; icmp.len() - 8],
    );
    let mut packet = craft::changed(&packet, |packet| packet[9] = 1);
    packet[20..].copy_from_slice(icmp);
    packet
}

fn forged_errors(scene: &mut Scene) -> Result<()> {
    let [own, theirs] = addresses(scene)?;
    let mut packets = Vec::new();
    for number in 0..500u64 {
        for place in 0..2 {
            let at = |ip: [IpAddr; 2]| SocketAddr::new(ip[place], PROBES);
            let inner = craft::udp_packet(
                at(own),
                at(theirs),
                64,
                &message(1, number, [9; 8], [8; 8], 0),
            );
            packets.push(icmp_packet(
                theirs[place],
                own[place],
                &icmp(3, 3, [0; 4], &inner),
            ));
            packets.push(icmp_packet(
                theirs[place],
                own[place],
                &icmp(3, 4, [0, 0, 2, 68], &inner),
            ));
        }
    }
    send(scene, &packets)?;
    let (state, all) = peer(&scene.bed, 0, 1, false)?;
    ensure!(state == "well" || state == "slow", "{all}");
    Ok(())
}

fn pings(scene: &mut Scene) -> Result<()> {
    let [own, theirs] = addresses(scene)?;
    let packets: Vec<Vec<u8>> = (0..10_000u32)
        .map(|number| {
            icmp_packet(
                theirs[0],
                own[(number % 2) as usize],
                &icmp((number % 2 * 8) as u8, 0, number.to_be_bytes(), &[0x55; 56]),
            )
        })
        .collect();
    send(scene, &packets)
}

fn arp(scene: &mut Scene) -> Result<()> {
    let [own, theirs] = addresses(scene)?;
    let pod = scene.bed.pods[0].netns();
    // Sends a gratuitous ARP reply for each address, from the pod's own hardware address.
    for ip in [own[0], own[1], theirs[0], theirs[1]] {
        let script = format!(
            "my $m = `cat /sys/class/net/eth0/address`; $m =~ s/[:\\s]//g; $m = pack('H*', $m); my $i = inet_aton('{ip}'); \
             socket(S, 17, SOCK_RAW, 0x0608) or die $!; my $x = `cat /sys/class/net/eth0/ifindex`; \
             my $f = (\"\\xff\" x 6) . $m . pack('n6', 0x0806, 1, 0x0800, 0x0604, 2, 0); $f = substr($f, 0, 22) . $m . $i . (\"\\xff\" x 6) . $i; \
             for (1..20) {{ send(S, $f, 0, pack('SnlSCCa8', 17, 0x0806, $x, 1, 0, 6, '')) or die $!; }}"
        );
        pod.exec(
            "ip",
            &[
                "netns",
                "exec",
                pod.name(),
                "perl",
                "-MSocket",
                "-e",
                &script,
            ],
        )?;
    }
    let neighbours = scene.here().sh("ip neigh show dev flannel.1")?;
    ensure!(
        neighbours.lines().all(|line| line.contains("PERMANENT")),
        "{neighbours}"
    );
    Ok(())
}

/// Sends VXLAN datagrams from pod 0 to a node's tunnel port. Checks that the node's pod receives no datagram from the tunnel.
fn tunnel(scene: &Scene, to_node: usize) -> Result<()> {
    let [_, theirs] = addresses(scene)?;
    let target = &scene.bed.pods[to_node];
    let inner = craft::udp_packet(
        SocketAddr::new(theirs[1], 7),
        SocketAddr::new(target.address()?, 7777),
        64,
        b"tunnelled",
    );
    let link = scene.bed.hosts[to_node]
        .netns()
        .sh("ip -br link show flannel.1")?;
    let mac = link
        .split_whitespace()
        .nth(2)
        .with_context(|| link.clone())?;
    let mac: Vec<u8> = mac
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect::<Result<_, _>>()?;
    let mac: [u8; 6] = mac.try_into().ok().context("no MAC")?;
    let frame = craft::vxlan(1, mac, 0x0800, &inner);
    let socket = target
        .netns()
        .run(|| std::net::UdpSocket::bind("0.0.0.0:7777"))??;
    socket.set_read_timeout(Some(Duration::from_millis(1500)))?;
    let to = SocketAddr::new(scene.bed.hosts[to_node].v4()?.into(), 8472);
    let own = scene.bed.pods[0].address()?;
    craft::send_from(
        scene.bed.pods[0].netns(),
        SocketAddr::new(own, 0),
        to,
        &[frame.clone(), frame.clone()],
    )?;
    if to_node == 0 {
        // With strict reverse path filtering, the bridge drops packets that have a peer's source address.
        scene.here().sysctl("net/ipv4/conf/cni0/rp_filter", "1")?;
    }
    send(
        scene,
        &[craft::udp_packet(
            SocketAddr::new(theirs[0], 8472),
            to,
            64,
            &frame,
        )],
    )?;
    let mut buffer = [0; 100];
    ensure!(
        socket.recv(&mut buffer).is_err(),
        "the packet came out of the tunnel"
    );
    Ok(())
}

fn tunnel_to_the_node(scene: &mut Scene) -> Result<()> {
    tunnel(scene, 0)
}

fn tunnel_to_a_peer(scene: &mut Scene) -> Result<()> {
    tunnel(scene, 1)
}
