//! Obstacles to writing rules: a lock that another program holds forever, missing programs, and a limit of processes. The node works except for its
//! rules, reports the obstacle once, and writes the rules when it disappears.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Node, Programs, Scene, Uplink, Xtables, until, until_ok};

use crate::healing::scenarios;

use super::node::{
    Applier, IptablesLegacy, IptablesNft, Nftables, firewall_rules, has_flannel_rules,
    logged_warnings_and_errors, masquerading_node_scene, run_on_stopped_masquerading_node,
};

/// The first warning contains `text`, as `/readyz` does.
fn wait_until_obstacle_is_reported(node: &Node, text: &str) -> Result<()> {
    until_ok("the log reports the obstacle", || {
        let (found, (code, page)) =
            (logged_warnings_and_errors(node.daemon()?), node.get_health_endpoint("/readyz")?);
        ensure!(found.iter().any(|line| line.contains(text)), "{found:#?}");
        ensure!(code != 200 && page.contains(text), "/readyz: {code} {page}");
        Ok(())
    })
}

/// The daemon has its rules, is ready, and has reported the obstacle once.
fn wait_until_rules_recover(node: &Node, applier: Applier) -> Result<()> {
    until("the rules are there", || has_flannel_rules(node, applier).unwrap_or_default())?;
    until("it is ready", || node.require_ready().is_ok())?;
    let found = logged_warnings_and_errors(node.daemon()?);
    ensure!(found.len() == 1, "{found:#?}");
    Ok(())
}

/// Another program holds the xtables lock. It delays neither the daemon's start, nor packets, nor the rules of the other family.
#[test]
fn held_lock_delays_neither_start_nor_packets() -> Result<()> {
    Scene::with_title("lock").net(&IptablesLegacy.net_conf()).without_daemons().run(|s| {
        let calls = s.lab.ensure_folder("")?.join("calls");
        let mut programs = Programs::with_both_iptables_variants(s.lab, "all", Xtables::Legacy)?;
        for family in ["iptables", "ip6tables"] {
            let count = format!("#!/bin/sh\n/usr/sbin/{family}-legacy-restore \"$@\"\nstatus=$?\necho >> {}\nexit $status\n", calls.display());
            programs = programs.with_script(&format!("{family}-restore"), &count)?.with_script(&format!("{family}-legacy-restore"), &count)?;
        }
        let path = programs.path();
        s[0].change_options(|options| options.arg("--ip-masq").arg("--iptables-resync=1").env("PATH", &path));
        // Each host has its own /run.
        let run = s[0].folder()?.join("run");
        std::fs::create_dir_all(&run)?;
        let lock = std::fs::File::create(run.join("xtables.lock"))?;
        lock.lock()?;
        s[0].launch_daemon()?;
        s[1].start_daemon()?;
        until("subnet.env is there", || s[0].daemon().is_ok_and(|daemon| daemon.subnet_env().is_ok()))?;
        for node in &mut s.nodes {
            node.create_pod("p1")?;
        }
        s.wait_first_pods_connected()?;
        s[0].wait_log_contains("/run/xtables.lock")?;
        // Its rules are in nftables meanwhile.
        until("it is ready", || s[0].require_ready().is_ok())?;
        ensure!(has_flannel_rules(&s[0], Nftables)?);
        let ended = || std::fs::read_to_string(&calls).map_or(0, |text| text.lines().count());
        let first = ended();
        // Waits for both families. Otherwise one of them could still wait for the lock when it becomes free.
        until("it was tried again", || ended() >= first + 2)?;
        ensure!(!has_flannel_rules(&s[0], IptablesLegacy)?, "the lock does not hold up the rules: this test proves nothing");
        lock.unlock()?;
        wait_rules_move_to_iptables(&s[0], IptablesLegacy)
    })
}

/// The rules have moved from nftables to iptables, and the daemon has reported the obstacle once for each family.
fn wait_rules_move_to_iptables(node: &Node, applier: Applier) -> Result<()> {
    until("the rules are in iptables", || {
        has_flannel_rules(node, applier).unwrap_or_default()
            && has_flannel_rules(node, Nftables).is_ok_and(|has| !has)
    })?;
    node.require_ready()?;
    let found = logged_warnings_and_errors(node.daemon()?);
    ensure!(found.len() <= 2, "{found:#?}");
    Ok(())
}

#[test]
fn nftables_is_used_until_iptables_is_installed() -> Result<()> {
    masquerading_node_scene("no-iptables", IptablesNft).run(|s| {
        let programs = Programs::create_empty(s.lab, "some")?.with_nft()?;
        s[0].change_options(|options| options.env("PATH", &programs.path()));
        s.start_daemons()?;
        ensure!(has_flannel_rules(&s[0], Nftables)? && !has_flannel_rules(&s[0], IptablesNft)?);
        programs.with_iptables(Xtables::Nft)?;
        wait_rules_move_to_iptables(&s[0], IptablesNft)
    })
}

type Missing =
    (Applier, &'static str, fn(Programs) -> Result<Programs>, fn(Programs) -> Result<Programs>);

scenarios! { missing_programs_are_reported_once_and_used_when_installed;
    missing_programs_of_iptables_are_reported_once_and_used_when_installed => (IptablesNft, "iptables", Ok, |programs| programs.with_iptables(Xtables::Nft)),
    // Only programs with the variant's names, such as `iptables-nft`, and no program `iptables`.
    programs_of_a_variant_are_used_when_installed => (IptablesNft, "iptables", Ok, |programs| programs.with_full_iptables_names(Xtables::Nft)),
    missing_nft_is_reported_once_and_used_when_installed => (Nftables, "nftables", |programs| programs.with_iptables(Xtables::Nft), Programs::with_nft),
}

/// A node without iptables or nft works except for its rules, and reports the package to install.
fn missing_programs_are_reported_once_and_used_when_installed(
    (applier, package, present, install): Missing,
) -> Result<()> {
    masquerading_node_scene("missing", applier).run(|s| {
        let programs = present(Programs::create_empty(s.lab, "some")?)?;
        s[0].change_options(|options| options.env("PATH", &programs.path()));
        s[0].launch_daemon()?;
        until("subnet.env is there", || {
            s[0].daemon().is_ok_and(|daemon| daemon.subnet_env().is_ok())
        })?;
        wait_until_obstacle_is_reported(&s[0], &format!("install the package {package}"))?;
        install(programs)?;
        wait_until_rules_recover(&s[0], applier)
    })
}

/// In nftables mode, flanneld calls no iptables program, not even to remove the rules that iptables-nft wrote.
#[test]
fn nft_removes_the_iptables_rules_without_iptables() -> Result<()> {
    run_on_stopped_masquerading_node(IptablesNft, &[], |s| {
        s[0].sh("iptables -A FORWARD -s 1.2.3.4 -j DROP")?;
        s.start_daemons()?;
        s[0].stop_daemon()?;
        ensure!(has_flannel_rules(&s[0], IptablesNft)?);
        s.store.configure(&Nftables.net_conf())?;
        let path = Programs::create_empty(s.lab, "nft-only")?.with_nft()?.path();
        s[0].change_options(|options| options.env("PATH", &path));
        s.start_daemons()?;
        until("the rules of iptables are gone", || {
            has_flannel_rules(&s[0], IptablesNft).is_ok_and(|has| !has)
        })?;
        ensure!(
            has_flannel_rules(&s[0], Nftables)? && firewall_rules(&s[0])?.contains("1.2.3.4"),
            "{}",
            firewall_rules(&s[0])?
        );
        let found = logged_warnings_and_errors(s[0].daemon()?);
        ensure!(found.is_empty(), "{found:#?}");
        s[0].stop_daemon()?;
        // The daemon reports that no installed program can read the old tables.
        s[0].sh("iptables-legacy -A FORWARD -s 1.2.3.4 -j DROP")?;
        s.start_daemons()?;
        until("the log names the old tables", || {
            s[0].daemon().is_ok_and(|daemon| {
                logged_warnings_and_errors(daemon)
                    .concat()
                    .contains("iptables-legacy is not installed")
            })
        })
        .map(drop)
    })
}

/// A control group that allows no new processes and threads while it is closed.
struct ProcessLimit(PathBuf);

impl ProcessLimit {
    fn create(s: &Scene<'_>) -> Result<ProcessLimit> {
        let mounted = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(PathBuf::from);
        let below = |parent: &Path| {
            let folder = parent.join(s.lab.prefix());
            std::fs::create_dir(&folder).ok()?;
            folder.join("pids.max").exists().then_some(ProcessLimit(folder))
        };
        if let Some(limit) = mounted.iter().find_map(|parent| below(parent)) {
            return Ok(limit);
        }
        // The test has a mount namespace of its own.
        let own = s.lab.ensure_folder("cgroup")?;
        let at = own.display();
        s[0].sh(&format!("nsenter --mount=/proc/{0}/ns/mnt sh -c 'mount -t cgroup -o pids none {at} || mount -t cgroup2 none {at}'", std::process::id()))?;
        below(&own).context("no control group can limit processes")
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        std::fs::write(self.0.join(file), text)
            .with_context(|| format!("{text} to {file} of {}", self.0.display()))
    }
}

impl Drop for ProcessLimit {
    fn drop(&mut self) {
        // Its processes have ended by now.
        let _ = until("the control group is empty", || std::fs::remove_dir(&self.0).is_ok());
    }
}

scenarios! { process_limit_is_survived;
    iptables_survives_a_process_limit_and_logs_it_once => IptablesNft,
    nftables_survives_a_process_limit_and_logs_it_once => Nftables,
}

/// The daemon reports the limit once and still adds new nodes. It restores its rules when the system allows processes again.
fn process_limit_is_survived(applier: Applier) -> Result<()> {
    run_on_stopped_masquerading_node(applier, &[], |s| {
        let limit = ProcessLimit::create(s)?;
        // The daemon removes another tool's rules in a task of its own. The limit must not stop this task.
        s[0].sh(if applier == Nftables {
            "iptables-legacy -N FLANNEL-FWD"
        } else {
            "nft add table ip flannel-ipv4"
        })?;
        s.start_daemons()?;
        s[0].wait_log_contains("removed unused rules")?;
        let right = firewall_rules(&s[0])?;
        limit.write("cgroup.procs", &s[0].daemon()?.pid().to_string())?;
        limit.write("pids.max", "0")?;
        s[0].sh("nft flush ruleset")?;
        wait_until_obstacle_is_reported(&s[0], "no more processes")?;
        // tokio ends idle threads after 10 s unless flanneld keeps them, and the daemon could start no new ones.
        std::thread::sleep(Duration::from_secs(12));
        let other = s
            .lab
            .create_host("other", &[Uplink::enp0s8(&s.lan, 20)?])?
            .start_flanneld_and_wait_ready(&s[0].options)?;
        let route = other.subnet_env()?.subnet.context("no subnet")?.trunc();
        s[0].wait_output_contains("ip route", &route.to_string())?;
        ensure!(
            !has_flannel_rules(&s[0], applier)?,
            "the limit limits nothing: this test proves nothing"
        );
        limit.write("pids.max", "max")?;
        until("the rules are as before", || firewall_rules(&s[0]).is_ok_and(|now| now == right))?;
        wait_until_rules_recover(&s[0], applier)?;
        s[0].stop_daemon()
    })
}
