//! Obstacles to writing rules: a lock that another program holds forever, missing programs, and a limit of
//! processes. The node works except for its rules, reports the obstacle once, and writes the rules when the
//! obstacle disappears.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::{
    Flanneld, FlanneldOptions, Lab, PingOptions, Programs, Switch, Uplink, Xtables, ping,
    throughout, until,
};

use crate::healing::scenarios;

use super::node::{
    Applier, IptablesLegacy, IptablesNft, Nftables, Node, complaints, complaints_about, lines_with,
};

/// Time in which a daemon tries several times to write the rules, despite an obstacle.
const ATTEMPTS: Duration = Duration::from_secs(4);

/// Another program holds the xtables lock. The lock delays neither the daemon's start, nor packets, nor the rules of the other address family.
#[test]
fn held_lock_delays_neither_start_nor_packets() {
    Lab::run("lock", |lab| {
        let lan = lab.switch("lan")?;
        let calls = lab.folder("")?.join("calls");
        let mut programs = Programs::all(lab, "h1", Xtables::Legacy)?;
        for family in ["iptables", "ip6tables"] {
            let count =
                format!("#!/bin/sh\n/usr/sbin/{family}-legacy-restore \"$@\"\nstatus=$?\necho $status >> {}\nexit $status\n", calls.display());
            programs = programs.with_script(&format!("{family}-restore"), &count)?.with_script(&format!("{family}-legacy-restore"), &count)?;
        }
        let one = Node::with(lab, &lan, 1, IptablesLegacy, &programs)?;
        let mut two = Node::build(lab, &lan, 2, IptablesLegacy)?;
        two.options = FlanneldOptions::new(&one.store).iface("enp0s8");
        // Each host has its own /run.
        let run = one.host.folder()?.join("run");
        std::fs::create_dir_all(&run)?;
        let lock = std::fs::File::create(run.join("xtables.lock"))?;
        lock.lock()?;
        let daemon = one.host.start_flanneld(&one.options)?;
        let other = two.start()?;
        until("subnet.env is there", || daemon.subnet_env().is_ok())?;
        let here = one.host.pod("p1", &daemon.subnet_env()?)?;
        let there = two.host.pod("p1", &other.subnet_env()?)?;
        for (to, what) in there.addresses().into_iter().zip(["IPv4", "IPv6"]) {
            let reaches = || ping(here.netns(), to, &PingOptions::default()).is_ok_and(|answer| answer.is_some());
            until(&format!("pods reach each other by {what} while the lock is held"), reaches)?;
        }
        until("the log names the lock", || !complaints_about(&daemon, "/run/xtables.lock").is_empty())?;
        let ended = || std::fs::read_to_string(&calls).map_or(0, |text| text.lines().count());
        let first = ended();
        // Waits for both families. Otherwise one of them could still wait for the lock when it becomes free.
        until("it was tried again", || ended() >= first + 2)?;
        let (code, page) = daemon.get("/readyz")?;
        ensure!(code != 200 && page.contains("/run/xtables.lock"), "/readyz: {code} {page}");
        ensure!(!one.has_rules(IptablesLegacy), "the lock does not hold up the rules: this test proves nothing");
        ensure!(complaints(&daemon).len() == 1 && lines_with(&daemon.log(), "/run/xtables.lock") == 1, "{}", daemon.log());
        lock.unlock()?;
        let time = until("the rules come when the lock is free", || one.has_rules(IptablesLegacy))?;
        println!("{}\nthe rules came {time:.1?} after the lock was free", complaints(&daemon)[0]);
        until("it is ready", || daemon.is_ready())?;
        ensure!(complaints(&daemon).len() == 1, "{:#?}", complaints(&daemon));
        ensure!(lines_with(&daemon.log(), "the traffic rules are in place") == 1, "{}", daemon.log());
        Ok(())
    })
    .unwrap();
}

/// Checks that a node without iptables or nft works except for its rules, and reports the package to install.
/// After the installation, the node uses the programs.
fn missing_programs(
    applier: Applier,
    present: impl Fn(Programs) -> Result<Programs>,
    package: &str,
    missing: impl Fn(Programs) -> Result<Programs>,
) {
    Lab::run("missing", |lab| {
        let lan = lab.switch("lan")?;
        let programs = present(Programs::none(lab, "programs")?)?;
        let node = Node::with(lab, &lan, 1, applier, &programs)?;
        let daemon = node.host.start_flanneld(&node.options)?;
        until("subnet.env is there", || daemon.subnet_env().is_ok())?;
        let remedy = format!("install the package {package}");
        until("the remedy is in the log", || {
            !complaints_about(&daemon, &remedy).is_empty()
        })?;
        throughout(
            ATTEMPTS,
            "the log reports it once, and so does readiness",
            || {
                ensure!(
                    complaints(&daemon).len() == 1 && lines_with(&daemon.log(), &remedy) == 1,
                    "{:#?}",
                    complaints(&daemon)
                );
                let (code, page) = daemon.get("/readyz")?;
                ensure!(
                    code != 200 && page.contains(&remedy),
                    "/readyz: {code} {page}"
                );
                Ok(())
            },
        )?;
        println!("{}", complaints(&daemon)[0]);
        missing(programs)?;
        until("the rules come when the programs do", || {
            node.has_rules(applier)
        })?;
        until("it is ready", || daemon.is_ready())?;
        ensure!(complaints(&daemon).len() == 1, "{:#?}", complaints(&daemon));
        Ok(())
    })
    .unwrap();
}

#[test]
fn missing_programs_of_iptables_are_reported_once_and_used_when_installed() {
    missing_programs(IptablesNft, Ok, "iptables", |programs| {
        programs.with_iptables(Xtables::Nft)
    });
}

/// The host has only programs with the variant's names, such as `iptables-nft`, and no program `iptables`. flanneld uses the variant's programs.
#[test]
fn programs_of_a_variant_are_used_when_installed() {
    missing_programs(IptablesNft, Ok, "iptables", |programs| {
        programs.with_variant(Xtables::Nft)
    });
}

#[test]
fn missing_nft_is_reported_once_and_used_when_installed() {
    missing_programs(
        Nftables,
        |programs| programs.with_iptables(Xtables::Nft),
        "nftables",
        Programs::with_nft,
    );
    missing_programs(Nftables, Ok, "nftables", Programs::with_nft);
}

/// In nftables mode, flanneld calls no iptables program.
#[test]
fn nftables_needs_no_program_of_iptables() {
    Lab::run("nft only", |lab| {
        let lan = lab.switch("lan")?;
        let node = Node::with(
            lab,
            &lan,
            1,
            Nftables,
            &Programs::none(lab, "nft-only")?.with_nft()?,
        )?;
        let daemon = node.start()?;
        throughout(ATTEMPTS, "nothing is missed", || {
            ensure!(
                node.has_rules(Nftables)
                    && complaints(&daemon).is_empty()
                    && !daemon.log().contains("iptables"),
                "{}",
                daemon.log()
            );
            Ok(())
        })
    })
    .unwrap();
}

/// A control group that limits processes. If this machine has no mounted cgroup hierarchy, the test mounts the hierarchy in a mount namespace.
struct ProcessLimit {
    folder: PathBuf,
    _holder: Option<Holder>,
}

/// A process that keeps a mount namespace alive.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl ProcessLimit {
    fn create(lab: &Lab) -> Result<ProcessLimit> {
        let mut reasons = String::new();
        for parent in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
            match ProcessLimit::below(Path::new(parent), lab) {
                Ok(folder) => {
                    return Ok(ProcessLimit {
                        folder,
                        _holder: None,
                    });
                }
                Err(error) => reasons.push_str(&format!("{parent}: {error:#}; ")),
            }
        }
        for kind in ["-t cgroup -o pids", "-t cgroup2"] {
            let script = format!("mount {kind} none /mnt && echo ready && exec sleep 3600");
            let mut unshare = Command::new("unshare");
            unshare
                .args(["--mount", "--propagation", "private", "sh", "-c", &script])
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let mut holder = Holder(unshare.spawn()?);
            let mut line = String::new();
            let stdout = holder.0.stdout.take().context("no output")?;
            std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)?;
            let parent = PathBuf::from(format!("/proc/{}/root/mnt", holder.0.id()));
            match ProcessLimit::below(&parent, lab) {
                Ok(folder) if line == "ready\n" => {
                    return Ok(ProcessLimit {
                        folder,
                        _holder: Some(holder),
                    });
                }
                Ok(folder) => drop(std::fs::remove_dir(folder)),
                Err(error) => reasons.push_str(&format!("mount {kind}: {error:#}; ")),
            }
        }
        bail!("{reasons}")
    }

    fn below(parent: &Path, lab: &Lab) -> Result<PathBuf> {
        let folder = parent.join(lab.prefix());
        std::fs::create_dir(&folder)?;
        if let Err(error) = std::fs::metadata(folder.join("pids.max")) {
            let _ = std::fs::remove_dir(&folder);
            return Err(error).context("there is no limit of processes");
        }
        Ok(folder)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.folder.join(file);
        std::fs::write(&path, text).with_context(|| format!("{text} to {}", path.display()))
    }

    /// Forbids new processes and threads in the control group.
    fn close(&self) -> Result<()> {
        self.write("pids.max", "0")
    }

    fn open(&self) -> Result<()> {
        self.write("pids.max", "max")
    }
}

impl Drop for ProcessLimit {
    fn drop(&mut self) {
        // Its processes have been killed by now.
        let gone = || std::fs::remove_dir(&self.folder).is_ok();
        let _ = until("the cgroup is empty", gone);
    }
}

/// Starts a node that joins while another node can start no processes.
fn start_newcomer(lab: &Lab, lan: &Switch, node: &Node, applier: Applier) -> Result<Flanneld> {
    let programs = Programs::all(lab, "other", applier.xtables())?;
    let options = node
        .options
        .clone()
        .arg("--audit-interval=0")
        .env("PATH", &programs.path());
    lab.host("other", &[Uplink::enp0s8(lan, 20)?])?
        .flanneld(&options)
}

scenarios! { process_limit_is_survived;
    iptables_survives_a_process_limit_and_logs_it_once => IptablesNft,
    nftables_survives_a_process_limit_and_logs_it_once => Nftables,
}

/// Checks that a daemon survives while the system allows no new processes. The daemon reports the limit once and still adds new nodes.
/// The daemon restores its rules when the system allows processes again.
fn process_limit_is_survived(applier: Applier) -> Result<()> {
    Lab::run("processes", |lab| {
        let limit =
            ProcessLimit::create(lab).context("no cgroup can be made that limits processes")?;
        let lan = lab.switch("lan")?;
        let node = Node::build(lab, &lan, 1, applier)?;
        let mut daemon = node.start()?;
        let dump = node.dump()?;
        // Lets the daemon finish what it does once after the start.
        throughout(
            Duration::from_secs(3),
            "there is nothing to complain about",
            || {
                ensure!(complaints(&daemon).is_empty(), "{:#?}", complaints(&daemon));
                Ok(())
            },
        )?;
        limit.write("cgroup.procs", &daemon.pid().to_string())?;
        limit.close()?;
        node.run("nft", &["flush", "ruleset"])?;
        until("the log says so", || !complaints(&daemon).is_empty())?;
        let (code, page) = daemon.get("/readyz")?;
        ensure!(
            code != 200 && page.contains("no more processes"),
            "/readyz: {code} {page}"
        );
        let stays = |time: Duration| {
            throughout(time, "it says so once, and has no rules", || {
                let complaints = complaints(&daemon);
                ensure!(
                    complaints.len() == 1
                        && complaints[0].contains("no more processes")
                        && !complaints[0].contains("install"),
                    "{complaints:#?}"
                );
                ensure!(
                    !node.has_rules(applier),
                    "the limit limits nothing: this test proves nothing"
                );
                Ok(())
            })
        };
        // Idle threads end after 10 s, and the daemon can start no new ones. Then the new node gives it work.
        stays(Duration::from_secs(12))?;
        let other = start_newcomer(lab, &lan, &node, applier)?;
        stays(Duration::from_secs(1))?;
        ensure!(daemon.is_running(), "it ended: {}", daemon.log_tail(20));
        limit.open()?;
        let route = other
            .subnet_env()?
            .subnet
            .context("no v4 subnet")?
            .trunc()
            .to_string();
        let routed = || {
            node.host
                .netns()
                .routes()
                .is_ok_and(|routes| routes.iter().any(|found| found.dst == route))
        };
        until("a node that came meanwhile has a route", routed)?;
        until("the rules come when there are processes again", || {
            node.dump().is_ok_and(|now| now == dump)
        })?;
        until("it is ready", || daemon.is_ready())?;
        ensure!(
            complaints(&daemon).len() == 1 && daemon.errors().is_empty(),
            "{:#?}",
            complaints(&daemon)
        );
        daemon.terminate().map(drop)
    })
}
