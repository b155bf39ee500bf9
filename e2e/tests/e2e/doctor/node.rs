//! A host with its own files at the paths that the doctor reads, and with stand-ins for systemd's programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lab::{
    Flanneld, FlanneldOptions, Host, Lab, Launch, Pod, Scene, SceneOptions, Store, binaries, until,
    until_ok, write_script,
};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Each host has its own copy of these.
const FOLDERS: [(&str, &str); 7] = [
    ("default", "/etc/default"),
    ("cni", "/etc/cni/net.d"),
    ("ipam", "/var/lib/cni/networks"),
    ("sysctl", "/etc/sysctl.d"),
    ("modules", "/etc/modules-load.d"),
    ("units", "/etc/systemd/system"),
    ("links", "/etc/systemd/network"),
];

/// The words of a systemctl that waits, in the node's files.
const ASKED: &str = "systemctl-asked";

/// A stand-in for systemd-run with the features that the doctor's commands need. It runs a program with environment variables from a file, which no
/// shell evaluates.
const SYSTEMD_RUN: &str = r#"#!/bin/sh -e
while :; do
    case "$1" in
    -p) file=${2#EnvironmentFile=-}; shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
done
while IFS= read -r line; do
    case "$line" in
    [A-Z]*=*) export "$line" ;;
    esac
done < "$file"
exec "$@"
"#;

pub(crate) struct Node {
    pub host: Host,
    /// The node's /etc/default, /etc/cni/net.d, /var/lib/cni/networks and programs.
    pub files: PathBuf,
    options: FlanneldOptions,
    daemon: Option<Flanneld>,
    /// For the node's scripts.
    pub variables: Vec<(&'static str, String)>,
    scripts: u32,
    /// Of the doctor's last run.
    report: Value,
}

impl Node {
    pub(crate) fn new(
        lab: &Lab,
        host: &Host,
        options: &FlanneldOptions,
        store: &Store,
    ) -> Result<Node> {
        let files = lab.ensure_folder(&format!("{}-files", host.name()))?;
        for folder in FOLDERS.map(|(name, _)| name).iter().chain(&["bin"]) {
            std::fs::create_dir_all(files.join(folder))?;
        }
        // An operator writes into this file what the lab otherwise passes as flags.
        let lines = store.daemon_args().into_iter().filter_map(|arg| {
            let (name, value) = arg.strip_prefix("--")?.split_once('=')?;
            Some(format!("FLANNELD_{}={value}\n", name.to_uppercase().replace('-', "_")))
        });
        std::fs::write(files.join("default/flanneld"), lines.collect::<String>())?;
        // Only these programs are simulated: they do what systemd does. Like systemd's, this one returns when the daemon was restarted.
        let asked = files.join(ASKED);
        write_script(
            &files.join("bin/systemctl"),
            &format!(
                "#!/bin/sh\necho \"$@\" > '{0}.new'; mv '{0}.new' '{0}'; while [ -e '{0}' ]; do sleep 0.02; done",
                asked.display()
            ),
        )?;
        write_script(&files.join("bin/systemd-run"), SYSTEMD_RUN)?;
        std::os::unix::fs::symlink(
            binaries::flannel_binary("flannelctl")?,
            files.join("bin/flannelctl"),
        )?;
        let node = Node {
            host: host.clone(),
            files,
            options: options.clone(),
            daemon: None,
            variables: Vec::new(),
            scripts: 0,
            report: Value::Null,
        };
        node.write_flanneld_wrapper("")?;
        let wrapper = node.flanneld_wrapper_path();
        Ok(Node { options: options.clone().binary(&wrapper), ..node })
    }

    fn flanneld_wrapper_path(&self) -> PathBuf {
        self.files.join("bin/flanneld")
    }

    /// Mounts the host's files, runs the shell line `before`, and then starts the daemon.
    pub(crate) fn write_flanneld_wrapper(&self, before: &str) -> Result<()> {
        let flanneld = binaries::flannel_binary("flanneld")?;
        write_script(
            &self.flanneld_wrapper_path(),
            &format!(
                "#!/bin/sh -e\n{}{before}\necho $$ > /run/flanneld.pid\nexec '{}' \"$@\"",
                bind_mount_commands(&self.files),
                flanneld.display()
            ),
        )
    }

    /// Starts the daemon as the systemd unit does, with the options in the node's /etc/default/flanneld.
    pub(crate) fn start_without_waiting(&mut self) -> Result<()> {
        self.daemon = None;
        let file = std::fs::read_to_string(self.files.join("default/flanneld"))?;
        let options = file
            .lines()
            .filter_map(|line| line.split_once('='))
            .fold(self.options.clone(), |options, (name, value)| options.env(name, value));
        self.daemon = Some(self.host.start_flanneld(&options)?);
        Ok(())
    }

    /// Ends the daemon as systemd does: SIGTERM, and then SIGCONT, so that a suspended daemon can exit.
    pub(crate) fn stop(&mut self) -> Result<()> {
        if let Some(daemon) = &mut self.daemon {
            if daemon.is_running() {
                daemon.signal(Signal::SIGTERM)?;
                daemon.send_sigcont()?;
            }
            daemon.wait()?;
        }
        Ok(())
    }

    pub(crate) fn restart_without_waiting(&mut self) -> Result<()> {
        self.stop()?;
        self.start_without_waiting()
    }

    pub(crate) fn daemon(&mut self) -> Result<&mut Flanneld> {
        self.daemon.as_mut().context("no daemon was started")
    }

    pub(crate) fn wait_ready(&mut self) -> Result<()> {
        until_ok("the daemon is ready", || self.require_readyz(200))
    }

    /// Waits until the daemon has run for longer than the grace periods of the checks.
    pub(crate) fn wait_past_grace_periods(&mut self) -> Result<()> {
        let daemon = self.daemon()?;
        until_ok("the first ten seconds", || {
            let text = daemon.get_health_endpoint("/status")?.1;
            let status: Value = serde_json::from_str(&text)?;
            ensure!(status["uptime_seconds"].as_u64() > Some(10), "{text}");
            Ok(())
        })
    }

    /// Runs on the host, and restarts the daemon when the script asks systemd for it. The result is the exit code and the output.
    pub(crate) fn sh(&mut self, script: &str) -> Result<(i32, String)> {
        self.scripts += 1;
        let name = format!("script-{}", self.scripts);
        let variables: String =
            self.variables.iter().map(|(name, value)| format!("{name}='{value}'\n")).collect();
        let whole = format!(
            "{}PATH='{}':$PATH\n{variables}{script}",
            bind_mount_commands(&self.files),
            self.files.join("bin").display()
        );
        let mut process = self.host.spawn(&name, &Launch::new("sh").args(["-ec", &whole]))?;
        let mut restarted = Ok(());
        until("the script ends", || {
            restarted = self.serve_systemctl();
            restarted.is_err() || !process.is_running()
        })?;
        restarted?;
        let status = process.wait()?;
        Ok((status.code().unwrap_or(-1), process.log()))
    }

    /// Does what the stand-in for systemctl has asked for, and lets it return.
    fn serve_systemctl(&mut self) -> Result<()> {
        let asked = self.files.join(ASKED);
        let Ok(words) = std::fs::read_to_string(&asked) else { return Ok(()) };
        if words.trim_end().ends_with(" flanneld") {
            self.restart_without_waiting()?;
        }
        Ok(std::fs::remove_file(&asked)?)
    }

    /// Runs on the host. Fails if the script fails.
    pub(crate) fn run(&mut self, script: &str) -> Result<()> {
        let (code, text) = self.sh(script)?;
        ensure!(code == 0, "{script}: {code}: {text}");
        Ok(())
    }

    /// The result is the doctor's exit code.
    pub(crate) fn run_doctor(&mut self) -> Result<i32> {
        let (code, text) = self.sh("flannelctl doctor -o json")?;
        self.report =
            serde_json::from_str(&text).with_context(|| format!("exit code {code}: {text}"))?;
        Ok(code)
    }

    /// The findings of the doctor's last run.
    pub(crate) fn findings(&self) -> &[Value] {
        self.report["findings"].as_array().map_or(&[], Vec::as_slice)
    }

    /// The first finding of the doctor's last run.
    pub(crate) fn first_finding(&self) -> Result<&Value> {
        self.findings().first().context("no finding")
    }

    /// In the doctor's last run, the finding of `by` explains that of `check`.
    pub(crate) fn require_finding_explained_by(&self, check: &str, by: &str) -> Result<()> {
        let mut folded = self.findings().iter().filter(|finding| finding["check"] == check);
        ensure!(folded.any(|finding| finding["explained_by"] == by), "{:#?}", self.findings());
        Ok(())
    }

    /// The first finding of the doctor's last run contains the text.
    pub(crate) fn require_first_finding_contains(&self, text: &str) -> Result<()> {
        let first = self.first_finding()?;
        ensure!(first.to_string().contains(text), "no {text:?} in {first:#}");
        Ok(())
    }

    /// Waits until the doctor's report contains exactly these causes, in this order, and the daemon's metrics contain the same ones.
    pub(crate) fn wait_exact_causes(&mut self, wanted: &[&str]) -> Result<()> {
        until_ok(&format!("the doctor finds {wanted:?}"), || {
            self.run_doctor_and_require_causes(wanted)
        })
    }

    /// Runs the doctor once: exactly these causes.
    pub(crate) fn run_doctor_and_require_causes(&mut self, wanted: &[&str]) -> Result<()> {
        let code = self.run_doctor()?;
        let mut causes = self.findings().to_vec();
        causes.retain(|finding| finding["explained_by"].is_null());
        let found: Vec<&str> =
            causes.iter().filter_map(|finding| finding["check"].as_str()).collect();
        ensure!(found == wanted, "{found:?} instead of {wanted:?}: {:#}", self.report);
        let broken = causes.iter().any(|finding| finding["severity"] == "broken");
        ensure!(code == if broken { 3 } else { 0 }, "{code}: {:#}", self.report);
        if self.report["daemon"] == "running" {
            let (_, text) = self.daemon()?.get_health_endpoint("/metrics")?;
            let counted = text.lines().filter(|line| !line.ends_with(" 0"));
            let counted: BTreeSet<&str> = counted
                .filter_map(|line| {
                    line.strip_prefix("flannel_findings{check=\"")?.split('"').next()
                })
                .collect();
            ensure!(
                counted == wanted.iter().copied().collect(),
                "{counted:?} in the metrics, not {wanted:?}"
            );
        }
        Ok(())
    }

    /// Waits until the doctor has run all checks again. The daemon reports only when a run began.
    pub(crate) fn wait_full_doctor_round(&mut self) -> Result<()> {
        for _ in 0..2 {
            let begun = Instant::now();
            until_ok("the doctor has run again", || {
                let age = self.daemon()?.metric("flannel_doctor_round_age_seconds")?;
                let passed = begun.elapsed().as_secs_f64();
                ensure!(age + 1.0 < passed, "{age} seconds ago");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Does not wait.
    pub(crate) fn require_readyz(&mut self, wanted: u16) -> Result<()> {
        let answer = self.daemon()?.get_health_endpoint("/readyz")?;
        ensure!(answer.0 == wanted, "{answer:?}");
        Ok(())
    }

    /// Runs commands as the doctor prints them.
    pub(crate) fn run_commands(&mut self, commands: &[String]) -> Result<()> {
        commands.iter().try_for_each(|command| self.run(command))
    }

    /// The commands of the first finding of the doctor's last run.
    pub(crate) fn first_finding_commands(&self) -> Result<Vec<String>> {
        let first = self.first_finding()?;
        let commands: Vec<String> = serde_json::from_value(first["remedy"]["commands"].clone())?;
        ensure!(!commands.is_empty(), "{first:#}");
        Ok(commands)
    }

    /// Runs the commands of the first finding of the doctor's last run, as printed.
    pub(crate) fn run_first_finding_commands(&mut self) -> Result<()> {
        let commands = self.first_finding_commands()?;
        self.run_commands(&commands)
    }
}

/// Mount the host's own files where programs expect them. Only the process that runs the commands sees the mounts.
fn bind_mount_commands(files: &Path) -> String {
    FOLDERS
        .map(|(name, place)| {
            format!("mkdir -p {place}; mount --bind '{}' {place}\n", files.join(name).display())
        })
        .concat()
}

/// Puts a node on each host of a scene, without a start. The variable `LEASES` is the folder of the leases, if they are in a directory.
pub(crate) fn create_stopped_nodes(s: &Scene<'_>, options: &FlanneldOptions) -> Result<Vec<Node>> {
    let folder = s.lab.ensure_folder("leases")?.display().to_string();
    let node = |host: &lab::Node| {
        let mut node = Node::new(s.lab, host, options, &s.store)?;
        node.variables.push(("LEASES", folder.clone()));
        let flannel = r#"{"plugins":[{"type":"flannel"}]}"#;
        std::fs::write(node.files.join("cni/10-flannel.conflist"), flannel)?;
        Ok(node)
    };
    s.nodes.iter().map(node).collect()
}

/// Puts a ready node on each host of a scene. The variables `OWN` and `PEER` are its own subnet without the last number, and another node's whole
/// subnet.
pub(crate) fn start_nodes_until_ready(
    s: &Scene<'_>,
    options: &FlanneldOptions,
) -> Result<Vec<Node>> {
    let mut nodes = create_stopped_nodes(s, &options.clone().iface("enp0s8"))?;
    nodes.iter_mut().try_for_each(Node::start_without_waiting)?;
    nodes.iter_mut().try_for_each(Node::wait_ready)?;
    let subnet =
        |node: &mut Node| Ok(node.daemon()?.subnet_env()?.subnet.context("a subnet")?.trunc());
    let subnets = nodes.iter_mut().map(subnet).collect::<Result<Vec<_>>>()?;
    for (number, node) in nodes.iter_mut().enumerate() {
        let (own, peer) =
            (subnets[number].network().to_string(), subnets[(number + 1) % subnets.len()]);
        node.variables
            .extend([("OWN", own.trim_end_matches(".0").to_owned()), ("PEER", peer.to_string())]);
    }
    Ok(nodes)
}

/// Each host of the scene has a node; none has a finding before the test.
pub(crate) fn run_with_healthy_nodes(
    scene: SceneOptions<'_>,
    work: impl FnOnce(&mut Scene<'_>, &mut [Node]) -> Result<()>,
) -> Result<()> {
    run_with_healthy_nodes_and_options(scene, &FlanneldOptions::bare(), work)
}

/// Like [`run_with_healthy_nodes`], with these options of all daemons.
pub(crate) fn run_with_healthy_nodes_and_options(
    scene: SceneOptions<'_>,
    options: &FlanneldOptions,
    work: impl FnOnce(&mut Scene<'_>, &mut [Node]) -> Result<()>,
) -> Result<()> {
    scene.without_daemons().run(|s| {
        let mut nodes = start_nodes_until_ready(s, options)?;
        nodes.iter_mut().try_for_each(Node::wait_past_grace_periods)?;
        wait_all_nodes_healthy(&mut nodes).context("at the start")?;
        work(s, &mut nodes)
    })
}

/// Builds one on each node.
pub(crate) fn create_pod_on_each_node(nodes: &mut [Node]) -> Result<Vec<Pod>> {
    let pod = |node: &mut Node| {
        let env = node.daemon()?.subnet_env()?;
        node.host.create_pod("p1", &env)
    };
    nodes.iter_mut().map(pod).collect()
}

/// Waits until no node has a finding and all are ready.
pub(crate) fn wait_all_nodes_healthy(nodes: &mut [Node]) -> Result<()> {
    for node in nodes {
        node.wait_exact_causes(&[])?;
        node.wait_ready()?;
    }
    Ok(())
}
