//! Tests floods of connections to the daemon's listeners, and which hosts and pods can reach the listeners.
//! The tests also run flannelctl with and without a daemon.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{
    Bed, Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, Mesh, Netns, PingMatrix, Pod,
    ProbeOptions, Store, Uplink, binaries, env_number, json, succeeded, texts, until, until_ok,
};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, setsockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use serde_json::Value;

use crate::canary::CANARY;

const VXLAN: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
const DEADLINE: Duration = Duration::from_secs(60);
/// Number of connections to each listener.
const CONNECTIONS: usize = 10_000;
/// Limit on the daemon's open files, far above the number of files that the daemon may use.
const FILES: usize = 1024;

/// Returns the duration of the flood: 12 seconds by default, and one minute in `make soak`.
fn flood_time() -> Duration {
    Duration::from_secs(env_number("FLANNEL_TEST_FIRE", 12))
}

/// Target of a flood.
#[derive(Clone, Debug)]
enum FloodTarget {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FloodTarget {
    fn connect(&self) -> std::io::Result<Box<dyn Write + Send>> {
        Ok(match self {
            FloodTarget::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, Duration::from_millis(200))?;
                stream.set_write_timeout(Some(Duration::from_millis(50)))?;
                Box::new(stream)
            }
            FloodTarget::Unix(path) => {
                let socket = socket::socket(
                    AddressFamily::Unix,
                    SockType::Stream,
                    SockFlag::SOCK_CLOEXEC,
                    None,
                )?;
                // Set before `connect`, which waits as long for a place in the queue: with a daemon that hangs, the test fails instead of waiting for good.
                setsockopt(&socket, SendTimeout, &TimeVal::milliseconds(50))?;
                socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
                Box::new(UnixStream::from(socket))
            }
        })
    }
}

/// Opens connections up to the number `CONNECTIONS`, then replaces the oldest connection with each new connection.
/// The connections are silent, send half a request head, send a head slowly, or do not read the response.
fn flood(netns: &Netns, target: &FloodTarget, opened: &AtomicUsize, stop: &AtomicBool) {
    let attack = || {
        // Each flood has its own file table: one process may not be allowed enough files for three floods.
        unshare(CloneFlags::CLONE_FILES).unwrap();
        let mut kept: Vec<Option<Box<dyn Write + Send>>> = Vec::new();
        let mut number = 0;
        while !stop.load(Relaxed) {
            if let Ok(mut stream) = target.connect() {
                let _ = match number % 5 {
                    0 => Ok(()),
                    1 => stream.write_all(b"GET /livez HTTP/1.1\r\nHost: local"),
                    2 => stream.write_all(b"G"),
                    3 => stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                    // The status page, on its port and on the socket.
                    _ => stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                };
                if kept.len() < CONNECTIONS {
                    kept.push(Some(stream));
                } else {
                    kept[number % CONNECTIONS] = Some(stream);
                }
                number += 1;
                opened.store(number, Relaxed);
            }
            // One of the kept connections sends another byte.
            if let Some(Some(slow)) =
                kept.get_mut(number.wrapping_mul(31) % number.clamp(1, CONNECTIONS))
            {
                let _ = slow.write_all(b"x");
            }
        }
    };
    netns.run(attack).unwrap();
}

/// Returns the number of files that a daemon has open.
fn open_files(daemon: &Flanneld) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).map_or(0, Iterator::count)
}

/// Returns the hard limit of open files of this process.
fn most_files() -> Result<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits")?;
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .context("no limit of open files")?;
    line.split_whitespace()
        .nth(4)
        .and_then(|hard| hard.parse().ok())
        .context("no hard limit of open files")
}

fn limit_files(pid: u32, files: usize) -> Result<()> {
    let done = std::process::Command::new("prlimit")
        .arg(format!("--pid={pid}"))
        .arg(format!("--nofile={files}:{files}"))
        .status()?;
    ensure!(done.success(), "prlimit failed");
    Ok(())
}

struct Cluster {
    etcd: Etcd,
    store: Store,
    hosts: Vec<Host>,
    daemons: Vec<Flanneld>,
    pods: Vec<Pod>,
}

fn cluster(lab: &Lab) -> Result<Cluster> {
    let lan = lab.switch("lan")?;
    let hosts = lab.hosts(&lan, 2)?;
    let place = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
    let etcd = Etcd::start(&[&place], &EtcdOptions::default().auth("flannel", CANARY))?;
    let store = etcd.store()?;
    store.configure(VXLAN)?;
    let options = FlanneldOptions::new(&store).iface("enp0s8");
    let daemons: Vec<Flanneld> = hosts
        .iter()
        .map(|host| host.flanneld(&options))
        .collect::<Result<_>>()?;
    let pods = Bed::pods(&hosts, &daemons)?;
    Ok(Cluster {
        etcd,
        store,
        hosts,
        daemons,
        pods,
    })
}

fn socket(daemon: &Flanneld) -> PathBuf {
    PathBuf::from(format!("{}.sock", daemon.subnet_file().display()))
}

fn own_key(cluster: &Cluster) -> Result<String> {
    let subnet = cluster.daemons[0]
        .subnet_env()?
        .subnet
        .context("no subnet")?
        .trunc();
    Ok(cluster.store.key(&format!(
        "subnets/{}-{}",
        subnet.network(),
        subnet.prefix_len()
    )))
}

#[test]
fn connection_flood_does_not_block_the_daemon() {
    Lab::run("listeners-fire", |lab| {
        let cluster = cluster(lab)?;
        let (daemon, host) = (&cluster.daemons[0], &cluster.hosts[0]);
        let most = most_files()?;
        ensure!(
            most > CONNECTIONS + 1000,
            "this test needs a limit of open files (ulimit -Hn) above {}",
            CONNECTIONS + 1000
        );
        limit_files(std::process::id(), most)?;
        limit_files(daemon.pid(), FILES)?;
        let targets = [
            FloodTarget::Tcp("127.0.0.1:8471".parse()?),
            FloodTarget::Tcp("127.0.0.1:8474".parse()?),
            FloodTarget::Unix(socket(daemon)),
        ];
        let opened: [AtomicUsize; 3] = Default::default();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| -> Result<()> {
            for (target, opened) in targets.iter().zip(&opened) {
                scope.spawn(|| flood(host.netns(), target, opened, &stop));
            }
            let outcome = serves_during_flood(&cluster, &opened);
            stop.store(true, Relaxed);
            outcome
        })?;
        ensure!(daemon.is_ready(), "not ready: {:?}", daemon.get("/readyz"));
        ensure!(daemon.errors().is_empty(), "{:?}", daemon.errors());
        ensure!(
            !daemon.log().contains("cannot accept connections"),
            "{}",
            daemon.log_tail(20)
        );
        Ok(())
    })
    .unwrap();
}

fn serves_during_flood(cluster: &Cluster, opened: &[AtomicUsize; 3]) -> Result<()> {
    let daemon = &cluster.daemons[0];
    until("the flood has begun", || {
        opened.iter().all(|opened| opened.load(Relaxed) > 500)
    })?;
    let probes = Mesh::start(
        &cluster.pods,
        &ProbeOptions::default().interval(Duration::from_millis(20)),
    )?;
    probes.wait_flowing()?;
    let (begun, mut answers, mut most) = (Instant::now(), 0, 0);
    while begun.elapsed() < flood_time()
        || opened
            .iter()
            .any(|opened| opened.load(Relaxed) < CONNECTIONS)
    {
        ensure!(
            begun.elapsed() < flood_time() + 5 * DEADLINE,
            "the flood is too slow: {opened:?}"
        );
        let (code, text) = until_ok("/livez answers", || daemon.get("/livez"))?;
        ensure!(
            (code, text.as_str()) == (200, "flanneld is running"),
            "{code} {text}"
        );
        let status = daemon.flannelctl(&["status"])?;
        ensure!(
            status.status.success() || texts(&status).contains("does not respond"),
            "{}",
            texts(&status)
        );
        answers += 1;
        most = most.max(open_files(daemon));
        std::thread::sleep(Duration::from_millis(200));
    }
    ensure!(most < 400, "{most} open files");
    println!("{opened:?} connections, {answers} answers, at most {most} files");
    // Peers remove a node when it is absent from the store for five seconds. On a busy machine, etcd takes that long to authenticate.
    probes.require_clean()?;

    // The daemon also opens new connections to the store.
    let key = own_key(cluster)?;
    let client = cluster.etcd.client()?;
    daemon.signal(Signal::SIGHUP)?;
    ensure!(client.del(&key)?, "{key} was not there");
    until("the lease is back", || {
        matches!(client.get(&key), Ok(Some(_)))
    })?;
    std::fs::remove_file(daemon.subnet_file())?;
    until("subnet.env is back", || daemon.subnet_file().exists())?;
    cluster.hosts[0].netns().sh("ip link del flannel.1")?;
    until_ok("the device is back", || {
        PingMatrix::of(&cluster.pods)?.require_complete()
    })
}

/// Requests a path and returns the whole response, from the status line on.
fn ask(netns: &Netns, address: &str, host: &str, path: &str) -> std::io::Result<String> {
    let address: SocketAddr = address.parse().unwrap();
    netns
        .run(|| {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")?;
            let mut text = Vec::new();
            stream.read_to_end(&mut text)?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        })
        .unwrap()
}

#[test]
fn status_api_is_reachable_from_its_own_host_only() {
    Lab::run("listeners-reach", |lab| {
        let cluster = cluster(lab)?;
        answers_to_its_own_names(&cluster)?;
        is_unreachable_from_outside(&cluster)?;
        refuses_other_users(lab, &cluster)
    })
    .unwrap();
}

/// Checks that the status API accepts only the host's own names in the Host header, because a web page's name could resolve to 127.0.0.1.
fn answers_to_its_own_names(cluster: &Cluster) -> Result<()> {
    let node = |name: &str| {
        ask(
            cluster.hosts[0].netns(),
            "127.0.0.1:8474",
            name,
            "/api/v1/node",
        )
    };
    // On a busy machine, a connection may take longer than the limit of one request.
    let node = |name: &str| until_ok("the status API's port answers", || Ok(node(name)?));
    let answer = node("localhost")?;
    ensure!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    ensure!(!answer.contains(CANARY), "{answer}");
    for (name, code) in [
        ("127.0.0.1:8474", 200),
        ("h1", 200),
        ("evil.example", 421),
        ("h2", 421),
    ] {
        let answer = node(name)?;
        ensure!(
            answer.starts_with(&format!("HTTP/1.1 {code} ")),
            "{name}: {answer}"
        );
        ensure!(
            answer.contains("192.168.56.102") == (code == 200),
            "{name}: {answer}"
        );
    }
    Ok(())
}

/// Checks that neither pods nor another host can connect to the status API.
fn is_unreachable_from_outside(cluster: &Cluster) -> Result<()> {
    let own = cluster.hosts[0].v4()?;
    let gateway = cluster.daemons[0]
        .subnet_env()?
        .subnet
        .context("no subnet")?
        .addr();
    let outside = [
        cluster.pods[0].netns(),
        cluster.pods[1].netns(),
        cluster.hosts[1].netns(),
    ];
    for netns in outside {
        for address in [format!("{own}:8474"), format!("{gateway}:8474")] {
            ensure!(
                ask(netns, &address, "localhost", "/api/v1/node").is_err(),
                "{} reaches {address}",
                netns.name()
            );
        }
    }
    for pod in &cluster.pods {
        ensure!(ask(pod.netns(), "127.0.0.1:8474", "localhost", "/api/v1/node").is_err());
    }
    Ok(())
}

/// Checks that only root may use the socket and the commands that change or collect data. flannelctl reports the refusal in one line.
fn refuses_other_users(lab: &Lab, cluster: &Cluster) -> Result<()> {
    let (daemon, here) = (&cluster.daemons[0], cluster.hosts[0].netns());
    let program = binaries::own("flannelctl")?;
    let copy = std::env::temp_dir().join(format!("{}-flannelctl", lab.prefix()));
    // Another program copies the file. A child that a concurrent test starts could inherit this program's descriptor, and the kernel does not
    // execute a file that is open for writing.
    here.sh(&format!("cp '{}' '{}'", program.display(), copy.display()))?;
    let file = format!("--subnet-file={}", daemon.subnet_file().display());
    let path = copy.to_string_lossy().into_owned();
    let refused = here.output(
        "setpriv",
        &["--reuid=65534", "--clear-groups", &path, "status", &file],
    )?;
    ensure!(
        refused.status.code() == Some(1)
            && texts(&refused).contains("only root may connect to flanneld"),
        "{refused:?}"
    );
    ensure!(texts(&refused).lines().count() == 1, "{}", texts(&refused));
    for args in [&["cleanup"][..], &["lab"], &["support-bundle"], &["peers"]] {
        let all = [&["--reuid=65534", "--clear-groups", path.as_str()], args].concat();
        let refused = here.output("setpriv", &all)?;
        ensure!(
            refused.status.code() == Some(1) && texts(&refused).lines().count() == 1,
            "{args:?}: {refused:?}"
        );
    }
    Ok(std::fs::remove_file(&copy)?)
}

/// Two hosts whose daemons store leases in a directory, and flannelctl on the first host.
struct StatusBed {
    hosts: Vec<Host>,
    options: FlanneldOptions,
    /// Path of the first host's subnet.env.
    file: PathBuf,
}

impl StatusBed {
    fn new(lab: &Lab) -> Result<StatusBed> {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(VXLAN)?;
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .healthz_port(None);
        let file = hosts[0].subnet_file()?;
        Ok(StatusBed {
            hosts,
            options,
            file,
        })
    }

    /// Runs flannelctl on the first host, which may have no running daemon.
    fn flannelctl(&self, args: &[&str]) -> Result<Output> {
        let file = format!("--subnet-file={}", self.file.display());
        self.hosts[0].flannelctl(&[args, &[file.as_str()]].concat())
    }

    fn json(&self, args: &[&str]) -> Result<Value> {
        json(&self.flannelctl(args)?)
    }

    /// Checks that `flannelctl status` exits with code 3 and prints each of `parts`.
    fn require_down(&self, parts: &[&str]) -> Result<()> {
        let output = self.flannelctl(&["status"])?;
        let text = texts(&output);
        ensure!(
            output.status.code() == Some(3) && parts.iter().all(|part| text.contains(part)),
            "{parts:?} in {output:?}"
        );
        Ok(())
    }

    fn exit_report(&self) -> PathBuf {
        self.file.with_file_name("subnet.env.ended")
    }

    /// Checks the output of `flannelctl status` and `flannelctl peers` before the daemon's first start.
    fn is_absent(&self) -> Result<()> {
        self.require_down(&["is not running on"])?;
        let begun = Instant::now();
        let output = self.flannelctl(&["peers"])?;
        ensure!(
            output.status.code() == Some(1) && texts(&output).lines().count() == 1,
            "{output:?}"
        );
        ensure!(begun.elapsed() < DEADLINE);
        Ok(())
    }

    /// Checks the output of `flannelctl status` for a daemon with one peer, as text and as JSON.
    fn status_is_complete(&self, daemon: &Flanneld) -> Result<()> {
        let ready = until_ok("both know each other", || {
            let output = self.flannelctl(&["status"])?;
            ensure!(
                output.status.success() && texts(&output).contains("peers     1"),
                "{}",
                texts(&output)
            );
            Ok(texts(&output))
        })?;
        let subnet = daemon.subnet_env()?.subnet.context("no subnet")?.trunc();
        for line in [
            "h1 is ready  ".to_owned(),
            format!("  subnet    {subnet}, which does not expire"),
            "  address   192.168.56.101 on enp0s8 (MTU 1500): named by --iface=enp0s8".to_owned(),
            format!("  pods      MTU 1450; {} is correct", self.file.display()),
            "  kernel    1 route, 1 neighbour, 1 FDB entry, all in sync".to_owned(),
            "  page      http://127.0.0.1:8474/".to_owned(),
        ] {
            ensure!(ready.contains(&line), "{line:?} in\n{ready}");
        }
        let json = self.json(&["status", "-o", "json"])?;
        ensure!(
            json["schema"] == "flannel.status/1"
                && json["node"]["schema"] == "flannel.node/1"
                && json["node"]["ready"] == true,
            "{json}"
        );
        Ok(())
    }

    /// Checks that `flannelctl peers` prints the peer's lease, and the probe results of both nodes.
    fn peers_are_complete(&self) -> Result<()> {
        let peers = texts(&self.flannelctl(&["peers"])?);
        ensure!(
            peers
                .lines()
                .any(|line| line.starts_with("h2 ") && line.contains("192.168.56.102")),
            "{peers}"
        );
        let json = self.json(&["peers", "-o", "json"])?;
        ensure!(
            json["schema"] == "flannel.peers/1" && json["peers"][0]["peer"]["node"] == "h2",
            "{json}"
        );
        until_ok("the peer is well", || {
            let output = self.flannelctl(&["peers", "--all"])?;
            let text = texts(&output);
            ensure!(
                output.status.success() && text.contains("\n1 of 1 well\n"),
                "{text}"
            );
            ensure!(
                text.lines()
                    .any(|line| line.starts_with("h2 ") && line.contains("1 of 1 well")),
                "{text}"
            );
            Ok(())
        })
    }

    fn hang_is_named(&self, daemon: &Flanneld) -> Result<()> {
        daemon.stop()?;
        let named = self.require_down(&["flanneld hangs on"]);
        daemon.cont()?;
        named
    }

    /// Checks that flanneld refuses to start as a second daemon on the host, and that the first daemon still responds.
    fn second_daemon_is_refused(&self) -> Result<()> {
        let mut second = self.hosts[0].start_flanneld(&self.options)?;
        ensure!(second.wait()?.code() == Some(1));
        ensure!(self.flannelctl(&["status"])?.status.success());
        ensure!(
            !self.exit_report().exists(),
            "the first daemon has not ended"
        );
        Ok(())
    }

    fn exit_is_explained(&self, lab: &Lab, daemon: &mut Flanneld) -> Result<()> {
        daemon.terminate()?;
        self.require_down(&["with exit code 0:\n    stopped on request"])?;
        let bad = Store::dir(&lab.folder("bad")?);
        bad.configure(&VXLAN.replace("vxlan", "nosuch"))?;
        let mut wrong = self.hosts[0].start_flanneld(
            &FlanneldOptions::new(&bad)
                .iface("enp0s8")
                .healthz_port(None),
        )?;
        wrong.wait()?;
        self.require_down(&["with exit code 1:\n    ", "nosuch"])
    }

    /// Checks that a ready daemon removes the exit report. A killed daemon leaves no exit report, and its
    /// stale socket does not stop the next daemon.
    fn kill_leaves_no_exit_report(&self) -> Result<()> {
        let mut again = self.hosts[0].flanneld(&self.options)?;
        until("the exit report is removed", || {
            !self.exit_report().exists()
        })?;
        again.kill()?;
        self.require_down(&["left no exit report"])?;
        let _after = self.hosts[0].flanneld(&self.options)?;
        until_ok("its socket replaces the stale one", || {
            succeeded("flannelctl status", &self.flannelctl(&["status"])?).map(drop)
        })
    }
}

#[test]
fn flannelctl_status_names_each_state_of_the_daemon() {
    Lab::run("listeners-ctl", |lab| {
        let bed = StatusBed::new(lab)?;
        bed.is_absent()?;
        let mut daemons: Vec<Flanneld> = bed
            .hosts
            .iter()
            .map(|host| host.flanneld(&bed.options))
            .collect::<Result<_>>()?;
        bed.status_is_complete(&daemons[0])?;
        bed.peers_are_complete()?;
        bed.hang_is_named(&daemons[0])?;
        bed.second_daemon_is_refused()?;
        bed.exit_is_explained(lab, &mut daemons[0])?;
        bed.kill_leaves_no_exit_report()
    })
    .unwrap();
}

#[test]
fn command_fails_in_one_line_when_the_store_is_silent() {
    Lab::run("listeners-silent", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        // The other host drops packets to etcd's port.
        hosts[1].netns().sh(
            "nft add table ip hole; nft 'add chain ip hole in { type filter hook input priority 0; }'; nft add rule ip hole in tcp dport 2379 drop",
        )?;
        for args in [&["leases"][..], &["release", "10.5.1.0-24"]] {
            let all = [args, &["--etcd-endpoints=http://192.168.56.102:2379"]].concat();
            let begun = Instant::now();
            let output = hosts[0].flannelctl(&all)?;
            ensure!(output.status.code() == Some(1), "{output:?}");
            ensure!(texts(&output).lines().count() == 1 && texts(&output).contains("192.168.56.102"), "{}", texts(&output));
            ensure!(begun.elapsed() < DEADLINE);
            println!("{args:?}: {:.1?}", begun.elapsed());
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn reserved_subnet_is_leased_to_its_node_in_etcd() {
    Lab::run("listeners-reserve-etcd", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let machine = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(&[&machine], &EtcdOptions::default())?;
        let flag = format!("--etcd-endpoints={}", etcd.client()?.endpoints().join(","));
        reserved_subnet_is_leased(&hosts, &etcd.store()?, &flag)
    })
    .unwrap();
}

#[test]
fn reserved_subnet_is_leased_to_its_node_in_a_directory() {
    Lab::run("listeners-reserve-dir", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let folder = lab.folder("leases")?;
        let flag = format!("--subnet-dir={}", folder.display());
        reserved_subnet_is_leased(&hosts, &Store::dir(&folder), &flag)
    })
    .unwrap();
}

/// Reserves one subnet for a node before the node starts, and another subnet while the node runs.
fn reserved_subnet_is_leased(hosts: &[Host], store: &Store, flag: &str) -> Result<()> {
    store.configure(VXLAN)?;
    let ctl = |words: &[&str]| hosts[0].flannelctl(&[words, &[flag]].concat());
    let reserved = ctl(&["reserve", "10.5.77.0/24", "--address=192.168.56.101"])?;
    ensure!(
        reserved.status.success() && texts(&reserved).contains("10.5.77.0/24 is reserved"),
        "{reserved:?}"
    );
    let twice = ctl(&["reserve", "10.5.77.0/24", "--address=192.168.56.103"])?;
    ensure!(
        twice.status.code() == Some(1) && texts(&twice).contains("overlaps 10.5.77.0/24"),
        "{twice:?}"
    );
    let options = FlanneldOptions::new(store).iface("enp0s8");
    let daemons: Vec<Flanneld> = hosts
        .iter()
        .map(|host| host.flanneld(&options))
        .collect::<Result<_>>()?;
    let subnet = daemons[0].subnet_env()?.subnet.context("no subnet")?;
    ensure!(subnet.trunc().to_string() == "10.5.77.0/24", "{subnet}");
    let kept = ctl(&["reserve", "h2"])?;
    ensure!(kept.status.success(), "{kept:?}");
    let listed = until_ok("both are reservations", || {
        let listed = json(&ctl(&["leases", "-o", "json"])?)?;
        let leases = listed["leases"].as_array().context("no list")?;
        ensure!(
            leases.len() == 2 && leases.iter().all(|lease| lease["reserved"] == true),
            "{listed}"
        );
        Ok(listed)
    })?;
    ensure!(listed["schema"] == "flannel.leases/1", "{listed}");
    ensure!(daemons.iter().all(Flanneld::is_ready));
    Ok(())
}
