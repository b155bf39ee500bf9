//! The ways in under fire, and from where they cannot be reached; what flannelctl says with and without a daemon.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{
    Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, Mesh, Netns, PingMatrix, Pod,
    ProbeOptions, Store, Uplink, binaries, eventually, eventually_ok,
};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use serde_json::Value;

const VXLAN: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
const DEADLINE: Duration = Duration::from_secs(60);
/// Connections on each way in.
const CONNECTIONS: usize = 10_000;
/// What a daemon is given, and far more than it may take.
const FILES: usize = 1024;
/// In the password, which is nobody's business.
const CANARY: &str = "c4n4ry-9f8e7d";

/// How long the fire lasts: seconds, a minute in `make soak`.
fn fire() -> Duration {
    Duration::from_secs(
        std::env::var("FLANNEL_TEST_FIRE")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(12),
    )
}

fn flannelctl(host: &Host, daemon: &Path, args: &[&str]) -> Output {
    let program = binaries::own("flannelctl").unwrap();
    let mut all = args.to_vec();
    let file = format!("--subnet-file={}", daemon.display());
    all.push(&file);
    host.netns()
        .output(&program.to_string_lossy(), &all)
        .unwrap()
}

fn texts(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Where a flood goes.
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
                let stream = UnixStream::connect(path)?;
                stream.set_write_timeout(Some(Duration::from_millis(50)))?;
                Box::new(stream)
            }
        })
    }
}

/// Opens connections until there are enough, keeps them all, and then goes on: silent ones, half heads, slow heads, and answers that nobody reads.
fn flood(netns: &Netns, way: &FloodTarget, opened: &AtomicUsize, stop: &AtomicBool) {
    let attack = || {
        // A table of files of its own: one process may not have enough for three floods.
        unshare(CloneFlags::CLONE_FILES).unwrap();
        let mut kept: Vec<Option<Box<dyn Write + Send>>> = Vec::new();
        let mut number = 0;
        while !stop.load(Relaxed) {
            if let Ok(mut stream) = way.connect() {
                let _ = match number % 4 {
                    0 => Ok(()),
                    1 => stream.write_all(b"GET /livez HTTP/1.1\r\nHost: local"),
                    2 => stream.write_all(b"G"),
                    _ => stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                };
                if kept.len() < CONNECTIONS {
                    kept.push(Some(stream));
                } else {
                    kept[number % CONNECTIONS] = Some(stream);
                }
                number += 1;
                opened.store(number, Relaxed);
            }
            // One of the slow ones goes on.
            if let Some(Some(slow)) =
                kept.get_mut(number.wrapping_mul(31) % number.clamp(1, CONNECTIONS))
            {
                let _ = slow.write_all(b"x");
            }
        }
    };
    netns.run(attack).unwrap();
}

/// The files that a process has open.
fn open_files(daemon: &Flanneld) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).map_or(0, Iterator::count)
}

/// How many files this process may open at most.
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
    let pods = hosts
        .iter()
        .zip(&daemons)
        .map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?))
        .collect::<Result<_>>()?;
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
fn no_client_starves_the_daemon() {
    let _alone = crate::one_load_at_a_time();
    Lab::run("ways-fire", |lab| {
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
        let ways = [
            FloodTarget::Tcp("127.0.0.1:8471".parse()?),
            FloodTarget::Tcp("127.0.0.1:8474".parse()?),
            FloodTarget::Unix(socket(daemon)),
        ];
        let opened: [AtomicUsize; 3] = Default::default();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| -> Result<()> {
            for (way, opened) in ways.iter().zip(&opened) {
                scope.spawn(|| flood(host.netns(), way, opened, &stop));
            }
            let outcome = under_fire(&cluster, &opened);
            stop.store(true, Relaxed);
            outcome
        })?;
        ensure!(daemon.is_ready(), "not ready: {:?}", daemon.get("/readyz"));
        ensure!(daemon.errors().is_empty(), "{:?}", daemon.errors());
        ensure!(
            !daemon.log().contains("cannot take connections"),
            "{}",
            daemon.log_tail(20)
        );
        Ok(())
    })
    .unwrap();
}

fn under_fire(cluster: &Cluster, opened: &[AtomicUsize; 3]) -> Result<()> {
    let (daemon, host) = (&cluster.daemons[0], &cluster.hosts[0]);
    eventually(DEADLINE, "the flood has begun", || {
        opened.iter().all(|opened| opened.load(Relaxed) > 500)
    })?;
    let probes = Mesh::start(
        &cluster.pods,
        &ProbeOptions::default().interval(Duration::from_millis(20)),
    )?;
    probes.wait_flowing(DEADLINE)?;
    let (begun, mut answers, mut most) = (Instant::now(), 0, 0);
    while begun.elapsed() < fire()
        || opened
            .iter()
            .any(|opened| opened.load(Relaxed) < CONNECTIONS)
    {
        ensure!(
            begun.elapsed() < fire() + DEADLINE,
            "the flood is too slow: {opened:?}"
        );
        let (code, text) = eventually_ok(DEADLINE, "/livez answers", || daemon.get("/livez"))?;
        ensure!(
            (code, text.as_str()) == (200, "flanneld is running"),
            "{code} {text}"
        );
        let status = flannelctl(host, daemon.subnet_file(), &["status"]);
        ensure!(
            status.status.success() || texts(&status).contains("does not answer"),
            "{}",
            texts(&status)
        );
        answers += 1;
        most = most.max(open_files(daemon));
        std::thread::sleep(Duration::from_millis(200));
    }
    ensure!(most < 400, "{most} open files");
    println!("{opened:?} connections, {answers} answers, at most {most} files");

    // The store is reached with new connections, too.
    let key = own_key(cluster)?;
    let client = cluster.etcd.client()?;
    daemon.signal(Signal::SIGHUP)?;
    ensure!(client.del(&key)?, "{key} was not there");
    eventually(DEADLINE, "the lease is back", || {
        matches!(client.get(&key), Ok(Some(_)))
    })?;
    std::fs::remove_file(daemon.subnet_file())?;
    eventually(DEADLINE, "subnet.env is back", || {
        daemon.subnet_file().exists()
    })?;
    probes.require_clean()?;
    // This one takes packets along.
    host.netns().sh("ip link del flannel.1")?;
    eventually_ok(DEADLINE, "the device is back", || {
        PingMatrix::of(&cluster.pods)?.require_complete()
    })
}

/// The status line and all that follows.
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
fn the_api_is_this_hosts_alone_and_tells_no_secret() {
    Lab::run("ways-reach", |lab| {
        let cluster = cluster(lab)?;
        let (daemon, host) = (&cluster.daemons[0], &cluster.hosts[0]);
        let here = host.netns();
        let node = |name: &str| ask(here, "127.0.0.1:8474", name, "/api/v1/node");
        let answer = eventually_ok(DEADLINE, "the status API's port answers", || {
            Ok(node("localhost")?)
        })?;
        ensure!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
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
        // Neither a pod nor another host gets there.
        let own = host.v4()?;
        let gateway = daemon.subnet_env()?.subnet.context("no subnet")?.addr();
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
        // Nor does another user.
        let program = binaries::own("flannelctl")?;
        let copy = std::env::temp_dir().join(format!("{}-flannelctl", lab.prefix()));
        std::fs::copy(&program, &copy)?;
        let file = format!("--subnet-file={}", daemon.subnet_file().display());
        let path = copy.to_string_lossy().into_owned();
        let refused = here.output(
            "setpriv",
            &["--reuid=65534", "--clear-groups", &path, "status", &file],
        );
        let refused = refused?;
        ensure!(
            refused.status.code() == Some(1)
                && texts(&refused).contains("only root may ask flanneld"),
            "{refused:?}"
        );
        ensure!(texts(&refused).lines().count() == 1, "{}", texts(&refused));

        // What needs root says so in one line.
        for args in [&["cleanup"][..], &["lab"], &["support-bundle"], &["peers"]] {
            let all = [&["--reuid=65534", "--clear-groups", path.as_str()], args].concat();
            let refused = here.output("setpriv", &all)?;
            ensure!(
                refused.status.code() == Some(1) && texts(&refused).lines().count() == 1,
                "{args:?}: {refused:?}"
            );
        }
        std::fs::remove_file(&copy)?;

        // What anybody is told contains no secret.
        let mut told = vec![daemon.log(), node("localhost")?];
        for path in ["/livez", "/readyz", "/metrics", "/status"] {
            told.push(daemon.get(path)?.1);
        }
        for args in [
            &["status"][..],
            &["status", "-o", "json"],
            &["peers"],
            &["peers", "-o", "json"],
        ] {
            let output = flannelctl(host, daemon.subnet_file(), args);
            ensure!(output.status.success(), "{args:?}: {}", texts(&output));
            told.push(texts(&output));
        }
        // A bundle, too, and what a program beside it wrote into it.
        let bundle = lab.folder("bundle")?;
        std::fs::write(
            format!("{}.ended", daemon.subnet_file().display()),
            format!("etcdPassword:{CANARY}\n"),
        )?;
        let file = bundle.join("b.tar.gz").display().to_string();
        let written = flannelctl(
            host,
            daemon.subnet_file(),
            &["support-bundle", "--file", &file],
        );
        ensure!(written.status.success(), "{}", texts(&written));
        let meta = std::fs::metadata(&file)?;
        ensure!(
            meta.permissions().mode() & 0o777 == 0o600 && meta.len() < 20_000_000,
            "{meta:?}"
        );
        let folder = bundle.display().to_string();
        here.exec(
            "tar",
            &["-xzf", &file, "-C", &folder, "--strip-components=1"],
        )?;
        let listed = texts(&flannelctl(
            host,
            daemon.subnet_file(),
            &["support-bundle", "--list"],
        ));
        for item in listed
            .lines()
            .filter_map(|line| line.split_whitespace().next())
        {
            let there = [item.to_owned(), format!("{item}.missing")]
                .iter()
                .any(|name| bundle.join(name).exists());
            ensure!(there, "{item} is not in the bundle: {listed}");
        }
        for item in [
            "flanneld/node.json",
            "flanneld/subnet.env",
            "net/links.txt",
            "net/routes.txt",
            "net/nftables.txt",
        ] {
            ensure!(
                bundle.join(item).exists(),
                "{item} could not be gathered: {:?}",
                std::fs::read_to_string(bundle.join(format!("{item}.missing")))
            );
        }
        told.push(here.exec("grep", &["-r", "", &folder])?);
        for text in &told {
            ensure!(
                !text.contains(CANARY),
                "{}",
                text.lines()
                    .find(|line| line.contains(CANARY))
                    .unwrap_or_default()
            );
        }
        let process = std::fs::read(format!("/proc/{}/environ", daemon.pid()))?;
        let words = std::fs::read(format!("/proc/{}/cmdline", daemon.pid()))?;
        let knows = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(CANARY);
        ensure!(
            knows(&process) || knows(&words),
            "the daemon was given the secret"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn flannelctl_tells_this_node_with_a_daemon_and_without() {
    Lab::run("ways-ctl", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(VXLAN)?;
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .healthz_port(None);
        let file = hosts[0].subnet_file()?;
        let status = |args: &[&str]| flannelctl(&hosts[0], &file, args);

        let none = status(&["status"]);
        ensure!(
            none.status.code() == Some(3) && texts(&none).contains("does not run on"),
            "{none:?}"
        );
        let begun = Instant::now();
        let output = status(&["peers"]);
        ensure!(
            output.status.code() == Some(1) && texts(&output).lines().count() == 1,
            "{output:?}"
        );
        ensure!(begun.elapsed() < DEADLINE);

        let mut daemons: Vec<Flanneld> = hosts
            .iter()
            .map(|host| host.flanneld(&options))
            .collect::<Result<_>>()?;
        let ready = eventually_ok(DEADLINE, "both know each other", || {
            let output = status(&["status"]);
            ensure!(
                output.status.success() && texts(&output).contains("peers     1"),
                "{}",
                texts(&output)
            );
            Ok(texts(&output))
        })?;
        let subnet = daemons[0]
            .subnet_env()?
            .subnet
            .context("no subnet")?
            .trunc();
        for line in [
            "h1 is ready  ".to_owned(),
            format!("  subnet    {subnet}, which does not expire"),
            "  address   192.168.56.101 on enp0s8 (MTU 1500): named by --iface=enp0s8".to_owned(),
            format!(
                "  pods      MTU 1450; {} is as it should be",
                file.display()
            ),
            "  kernel    1 route, 1 neighbour, 1 FDB entry, all as wanted".to_owned(),
            "  api       http://127.0.0.1:8474/api/v1/node".to_owned(),
        ] {
            ensure!(ready.contains(&line), "{line:?} in\n{ready}");
        }
        let json: Value = serde_json::from_slice(&status(&["status", "-o", "json"]).stdout)?;
        ensure!(
            json["schema"] == "flannel.status/1"
                && json["node"]["schema"] == "flannel.node/1"
                && json["node"]["ready"] == true,
            "{json}"
        );
        let peers = texts(&status(&["peers"]));
        ensure!(
            peers
                .lines()
                .any(|line| line.starts_with("h2 ") && line.contains("192.168.56.102")),
            "{peers}"
        );
        let json: Value = serde_json::from_slice(&status(&["peers", "-o", "json"]).stdout)?;
        ensure!(
            json["schema"] == "flannel.peers/1" && json["peers"][0]["peer"]["node"] == "h2",
            "{json}"
        );

        // What probes tell, here and on the other node.
        eventually_ok(DEADLINE, "the peer is well", || {
            let output = status(&["peers", "--all"]);
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
        })?;

        // A daemon that cannot be asked: it hangs.
        daemons[0].stop()?;
        let hangs = status(&["status"]);
        daemons[0].cont()?;
        ensure!(
            hangs.status.code() == Some(3) && texts(&hangs).contains("flanneld hangs on"),
            "{hangs:?}"
        );

        // A second one beside it is refused, and is not the one that is asked for.
        let mut second = hosts[0].start_flanneld(&options)?;
        ensure!(second.wait(DEADLINE)?.code() == Some(1));
        ensure!(status(&["status"]).status.success());
        ensure!(
            !file.with_file_name("subnet.env.ended").exists(),
            "the one that lives has not ended"
        );

        daemons[0].terminate(DEADLINE)?;
        let stopped = status(&["status"]);
        ensure!(
            stopped.status.code() == Some(3)
                && texts(&stopped).contains("with exit code 0:\n    stopped on request"),
            "{stopped:?}"
        );
        let bad = Store::dir(&lab.folder("bad")?);
        bad.configure(&VXLAN.replace("vxlan", "nosuch"))?;
        let mut wrong = hosts[0].start_flanneld(
            &FlanneldOptions::new(&bad)
                .iface("enp0s8")
                .healthz_port(None),
        )?;
        wrong.wait(DEADLINE)?;
        let refused = status(&["status"]);
        ensure!(
            refused.status.code() == Some(3)
                && texts(&refused).contains("with exit code 1:\n    ")
                && texts(&refused).contains("nosuch"),
            "{refused:?}"
        );

        // Ready again: the last words are no longer true. Killed: nobody answers, and nothing stands in the way of the next.
        let mut again = hosts[0].flanneld(&options)?;
        eventually(DEADLINE, "the last words go", || {
            !file.with_file_name("subnet.env.ended").exists()
        })?;
        again.kill()?;
        let killed = status(&["status"]);
        ensure!(
            killed.status.code() == Some(3) && texts(&killed).contains("left no word why"),
            "{killed:?}"
        );
        let _after = hosts[0].flanneld(&options)?;
        eventually(DEADLINE, "its socket replaces the stale one", || {
            status(&["status"]).status.success()
        })?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_silent_store_ends_a_command_in_one_line() {
    Lab::run("ways-silent", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        // Packets to the other host's etcd vanish.
        hosts[1].netns().sh(
            "nft add table ip hole; nft 'add chain ip hole in { type filter hook input priority 0; }'; nft add rule ip hole in tcp dport 2379 drop",
        )?;
        let program = binaries::own("flannelctl")?;
        for args in [&["leases"][..], &["release", "10.5.1.0-24"]] {
            let all = [args, &["--etcd-endpoints=http://192.168.56.102:2379"]].concat();
            let begun = Instant::now();
            let output = hosts[0].netns().output(&program.to_string_lossy(), &all)?;
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
fn a_reserved_subnet_is_the_nodes() {
    Lab::run("ways-reserve", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let place = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(&[&place], &EtcdOptions::default())?;
        let folder = lab.folder("leases")?;
        let program = binaries::own("flannelctl")?;
        let at_etcd = format!("--etcd-endpoints={}", etcd.client()?.endpoints().join(","));
        for (store, at) in [
            (etcd.store()?, at_etcd),
            (
                Store::dir(&folder),
                format!("--subnet-dir={}", folder.display()),
            ),
        ] {
            store.configure(VXLAN)?;
            let ctl = |words: &[&str]| {
                let words: Vec<&str> = words.iter().copied().chain([at.as_str()]).collect();
                hosts[0].netns().output(&program.to_string_lossy(), &words)
            };
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
            let options = FlanneldOptions::new(&store).iface("enp0s8");
            let daemons: Vec<Flanneld> = hosts
                .iter()
                .map(|host| host.flanneld(&options))
                .collect::<Result<_>>()?;
            ensure!(
                daemons[0]
                    .subnet_env()?
                    .subnet
                    .context("no subnet")?
                    .trunc()
                    .to_string()
                    == "10.5.77.0/24"
            );
            // The other node's lease is kept while it runs.
            let kept = ctl(&["reserve", "h2"])?;
            ensure!(kept.status.success(), "{kept:?}");
            let listed = eventually_ok(DEADLINE, "both are reservations", || {
                let listed: Value =
                    serde_json::from_slice(&ctl(&["leases", "-o", "json"])?.stdout)?;
                let leases = listed["leases"].as_array().context("no list")?;
                ensure!(
                    leases.len() == 2 && leases.iter().all(|lease| lease["reserved"] == true),
                    "{listed}"
                );
                Ok(listed)
            })?;
            ensure!(listed["schema"] == "flannel.leases/1", "{listed}");
            ensure!(daemons.iter().all(Flanneld::is_ready));
        }
        Ok(())
    })
    .unwrap();
}
