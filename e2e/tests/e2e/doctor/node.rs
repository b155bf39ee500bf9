//! A host with its own files at the paths that the doctor reads, and with stand-ins for systemd's programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use lab::{
    Flanneld, FlanneldOptions, Host, Lab, Launch, Store, Switch, binaries, until_ok, write_script,
};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Folders of which each host has its own copy.
const FOLDERS: [(&str, &str); 7] = [
    ("default", "/etc/default"),
    ("cni", "/etc/cni/net.d"),
    ("ipam", "/var/lib/cni/networks"),
    ("sysctl", "/etc/sysctl.d"),
    ("modules", "/etc/modules-load.d"),
    ("units", "/etc/systemd/system"),
    ("links", "/etc/systemd/network"),
];

/// Stand-in for systemd-run with the features that the doctor's commands need. The stand-in runs a program
/// with environment variables from a file, which no shell evaluates.
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

/// A node with the files and programs that its operator uses.
pub(crate) struct Node {
    pub host: Host,
    /// Folder with the node's /etc/default, /etc/cni/net.d, /var/lib/cni/networks and programs.
    pub files: PathBuf,
    options: FlanneldOptions,
    daemon: Option<Flanneld>,
    /// Shell variables that the node's scripts may use.
    pub variables: Vec<(&'static str, String)>,
    scripts: u32,
}

impl Node {
    pub(crate) fn new(
        lab: &Lab,
        host: &Host,
        options: &FlanneldOptions,
        store: &Store,
    ) -> Result<Node> {
        let files = lab.folder(&format!("{}-files", host.name()))?;
        for folder in FOLDERS.iter().map(|(name, _)| *name).chain(["bin"]) {
            std::fs::create_dir_all(files.join(folder))?;
        }
        // An operator writes into this file what the lab otherwise passes as flags.
        let lines = store.args().into_iter().filter_map(|arg| {
            let (name, value) = arg.strip_prefix("--")?.split_once('=')?;
            Some(format!(
                "FLANNELD_{}={value}\n",
                name.to_uppercase().replace('-', "_")
            ))
        });
        std::fs::write(files.join("default/flanneld"), lines.collect::<String>())?;
        // Only these programs are simulated: they do what systemd does.
        let marker = files.join("restart");
        write_script(
            &files.join("bin/systemctl"),
            &format!("#!/bin/sh\necho \"$@\" >> '{}'", marker.display()),
        )?;
        write_script(&files.join("bin/systemd-run"), SYSTEMD_RUN)?;
        std::os::unix::fs::symlink(binaries::own("flannelctl")?, files.join("bin/flannelctl"))?;
        let node = Node {
            host: host.clone(),
            files,
            options: options.clone(),
            daemon: None,
            variables: Vec::new(),
            scripts: 0,
        };
        node.wrap("")?;
        let wrapper = node.wrapper();
        Ok(Node {
            options: options.clone().binary(&wrapper),
            ..node
        })
    }

    fn wrapper(&self) -> PathBuf {
        self.files.join("bin/flanneld")
    }

    /// Writes a script that mounts the host's files, runs the shell line `before`, and then starts the daemon.
    pub(crate) fn wrap(&self, before: &str) -> Result<()> {
        let flanneld = binaries::own("flanneld")?;
        write_script(
            &self.wrapper(),
            &format!(
                "#!/bin/sh -e\n{}{before}\necho $$ > /run/flanneld.pid\nexec '{}' \"$@\"",
                mounts(&self.files),
                flanneld.display()
            ),
        )
    }

    /// Starts the daemon as the systemd unit does, with the options in the node's /etc/default/flanneld.
    pub(crate) fn start(&mut self) -> Result<()> {
        self.daemon = None;
        let file = std::fs::read_to_string(self.files.join("default/flanneld"))?;
        let options = file
            .lines()
            .filter_map(|line| line.split_once('='))
            .fold(self.options.clone(), |options, (name, value)| {
                options.env(name, value)
            });
        self.daemon = Some(self.host.start_flanneld(&options)?);
        Ok(())
    }

    /// Ends the daemon as systemd does: sends SIGTERM, and then SIGCONT, so that a suspended daemon can exit.
    pub(crate) fn stop(&mut self) -> Result<()> {
        if let Some(daemon) = &mut self.daemon {
            if daemon.is_running() {
                daemon.signal(Signal::SIGTERM)?;
                daemon.cont()?;
            }
            daemon.wait()?;
        }
        Ok(())
    }

    /// Restarts the daemon.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.start()
    }

    pub(crate) fn daemon(&mut self) -> Result<&mut Flanneld> {
        self.daemon.as_mut().context("no daemon was started")
    }

    /// Waits until the daemon is ready.
    pub(crate) fn ready(&mut self) -> Result<()> {
        let daemon = self.daemon()?;
        until_ok("the daemon is ready", || match daemon.get("/readyz")? {
            (200, _) => Ok(()),
            (code, text) => bail!("{code} {text}\n{}", daemon.log_tail(10)),
        })
    }

    /// Waits until the daemon has run for longer than the grace periods of the checks.
    pub(crate) fn grown(&mut self) -> Result<()> {
        let daemon = self.daemon()?;
        until_ok("the first ten seconds", || {
            let text = daemon.get("/status")?.1;
            let status: Value = serde_json::from_str(&text)?;
            ensure!(status["uptime_seconds"].as_u64() > Some(10), "{text}");
            Ok(())
        })
    }

    /// Runs a script on the host. Returns the script's exit code and output.
    pub(crate) fn sh(&mut self, script: &str) -> Result<(i32, String)> {
        self.scripts += 1;
        let name = format!("script-{}", self.scripts);
        let variables: String = self
            .variables
            .iter()
            .map(|(name, value)| format!("{name}='{value}'\n"))
            .collect();
        let whole = format!(
            "{}PATH='{}':$PATH\n{variables}{script}",
            mounts(&self.files),
            self.files.join("bin").display()
        );
        let mut process = self
            .host
            .spawn(&name, &Launch::new("sh").args(["-ec", &whole]))?;
        let status = process.wait()?;
        Ok((status.code().unwrap_or(-1), process.log()))
    }

    /// Runs a script on the host. Returns an error if the script fails.
    pub(crate) fn run(&mut self, script: &str) -> Result<()> {
        let (code, text) = self.sh(script)?;
        ensure!(code == 0, "{script}: {code}: {text}");
        Ok(())
    }

    /// Runs the doctor. Returns the doctor's exit code, and its report in JSON.
    pub(crate) fn doctor(&mut self) -> Result<(i32, Value)> {
        let (code, text) = self.sh("flannelctl doctor -o json")?;
        let report =
            serde_json::from_str(&text).with_context(|| format!("exit code {code}: {text}"))?;
        Ok((code, report))
    }

    /// Runs the doctor, and returns the first finding.
    pub(crate) fn first(&mut self) -> Result<Value> {
        let (_, report) = self.doctor()?;
        ensure!(report["findings"][0].is_object(), "{report:#}");
        Ok(report["findings"][0].clone())
    }

    /// Runs the doctor. Returns the name of the check, if any, whose finding explains the finding of `check`.
    pub(crate) fn folded(&mut self, check: &str) -> Result<Option<String>> {
        let (_, report) = self.doctor()?;
        let mut findings = report["findings"].as_array().context("no findings")?.iter();
        let found = findings.find(|finding| finding["check"] == check);
        Ok(found
            .and_then(|finding| finding["explained_by"].as_str())
            .map(str::to_owned))
    }

    /// Waits until the doctor's JSON report contains exactly the causes `wanted`, in the same order, and the daemon's metrics contain the same causes.
    pub(crate) fn expect(&mut self, wanted: &[&str]) -> Result<()> {
        until_ok(&format!("the doctor finds {wanted:?}"), || {
            self.finds(wanted)
        })
    }

    /// Runs the doctor once, and checks that the doctor finds exactly the causes `wanted`.
    pub(crate) fn finds(&mut self, wanted: &[&str]) -> Result<()> {
        let (code, report) = self.doctor()?;
        let findings = report["findings"].as_array().context("no findings")?;
        let causes: Vec<&Value> = findings
            .iter()
            .filter(|finding| finding["explained_by"].is_null())
            .collect();
        let found: Vec<&str> = causes
            .iter()
            .filter_map(|finding| finding["check"].as_str())
            .collect();
        ensure!(
            found == wanted,
            "{found:?} instead of {wanted:?}: {:#}",
            report["findings"]
        );
        let broken = causes.iter().any(|finding| finding["severity"] == "broken");
        ensure!(code == if broken { 3 } else { 0 }, "{code}: {report:#}");
        let (_, text) = self.sh("flannelctl doctor")?;
        if let Some(first) = wanted.first() {
            let line = text.lines().next().unwrap_or_default();
            ensure!(line.ends_with(&format!(" {first}")), "{text}");
        } else {
            ensure!(text.contains(": 0 broken, 0 degraded, 0 risks,"), "{text}");
        }
        if report["daemon"] == "running" {
            let metrics = self.counted()?;
            ensure!(
                metrics == wanted.iter().map(|check| (*check).to_owned()).collect(),
                "{metrics:?} in the metrics, not {wanted:?}"
            );
        }
        Ok(())
    }

    /// Returns the checks for which the metric `flannel_findings` is not 0.
    fn counted(&mut self) -> Result<BTreeSet<String>> {
        let (_, text) = self.daemon()?.get("/metrics")?;
        let lines = text.lines().filter_map(|line| {
            let (check, rest) = line
                .strip_prefix("flannel_findings{check=\"")?
                .split_once("\",severity=\"")?;
            Some((check, rest.split_once("} ")?.1))
        });
        let found: BTreeSet<(&str, &str)> = lines.collect();
        let unknown = text
            .lines()
            .filter(|line| line.starts_with("flannel_checks_unknown{") && line.ends_with(" 1"));
        ensure!(found.len() + unknown.count() > 50, "{text}");
        Ok(found
            .into_iter()
            .filter(|(_, count)| *count != "0")
            .map(|(check, _)| check.to_owned())
            .collect())
    }

    /// Returns the HTTP status and the body of /readyz.
    pub(crate) fn readyz(&mut self) -> Result<(u16, String)> {
        self.daemon()?.get("/readyz")
    }

    /// Runs commands as the doctor prints them, and restarts the daemon if a command would restart the daemon through systemd.
    pub(crate) fn type_in(&mut self, commands: &[String]) -> Result<()> {
        let file = self.files.join("restart");
        for command in commands {
            self.run(command)?;
            if std::fs::read_to_string(&file)
                .is_ok_and(|asked| asked.trim_end().ends_with(" flanneld"))
            {
                std::fs::remove_file(&file)?;
                self.restart()?;
            }
        }
        Ok(())
    }

    /// Runs the commands of the systemd units that the doctor's commands created, as a boot does.
    pub(crate) fn run_units(&mut self) -> Result<()> {
        self.run("cat /etc/systemd/system/flannel-*.service | sed -n 's/^ExecStart=//p' | sh -e")
    }

    /// Returns the commands of the first finding.
    pub(crate) fn commands(&mut self) -> Result<Vec<String>> {
        commands_of(&self.first()?)
    }

    /// Runs the commands of the first finding as the doctor prints them.
    pub(crate) fn mend(&mut self) -> Result<()> {
        let commands = self.commands()?;
        self.type_in(&commands)
    }

    /// Runs the commands of the first finding when it is from `check`. On a busy machine, the daemon may respond too late,
    /// and then another finding is the first.
    pub(crate) fn mend_finding(&mut self, check: &str) -> Result<()> {
        let what = format!("the first finding is {check}");
        let commands = until_ok(&what, || {
            let first = self.first()?;
            ensure!(first["check"] == check, "{first:#}");
            commands_of(&first)
        })?;
        self.type_in(&commands)
    }
}

/// Returns the commands of a finding. Returns an error if the finding has no commands.
fn commands_of(finding: &Value) -> Result<Vec<String>> {
    let commands = finding["remedy"]["commands"]
        .as_array()
        .with_context(|| format!("no commands: {finding}"))?;
    ensure!(!commands.is_empty(), "{finding:#}");
    Ok(commands
        .iter()
        .filter_map(|command| command.as_str().map(str::to_owned))
        .collect())
}

/// Returns commands that mount the host's own files where programs expect them. Only the process that runs the commands sees the mounts.
fn mounts(files: &Path) -> String {
    FOLDERS
        .map(|(name, place)| {
            format!(
                "mkdir -p {place}; mount --bind '{}' {place}\n",
                files.join(name).display()
            )
        })
        .concat()
}

/// Starts nodes on `hosts`, and waits until all of them are ready.
pub(crate) fn ready_nodes(
    lab: &Lab,
    hosts: &[Host],
    store: &Store,
    options: &FlanneldOptions,
) -> Result<Vec<Node>> {
    let mut nodes = hosts
        .iter()
        .map(|host| Node::new(lab, host, options, store))
        .collect::<Result<Vec<_>>>()?;
    for node in &mut nodes {
        std::fs::write(
            node.files.join("cni/10-flannel.conflist"),
            r#"{"plugins":[{"type":"flannel"}]}"#,
        )?;
        node.start()?;
    }
    nodes.iter_mut().try_for_each(Node::ready)?;
    let subnets = nodes
        .iter_mut()
        .map(|node| {
            Ok(node
                .daemon()?
                .subnet_env()?
                .subnet
                .context("a v4 subnet")?
                .trunc())
        })
        .collect::<Result<Vec<_>>>()?;
    for (number, node) in nodes.iter_mut().enumerate() {
        let other = subnets[(number + 1) % subnets.len()];
        let first = subnets[number].network().to_string();
        // These are the node's own subnet without the last number, and another node's whole subnet.
        node.variables.extend([
            ("OWN", first.trim_end_matches(".0").to_owned()),
            ("PEER", other.to_string()),
        ]);
    }
    Ok(nodes)
}

/// Runs a test with `count` nodes on one switch, with the network configuration `network`. The lab's folder `leases` contains the nodes'
/// leases. Checks before the test that no node has a finding.
pub(crate) fn well_nodes(
    network: &str,
    title: &str,
    count: u8,
    work: impl FnOnce(&Lab, &Switch, &mut [Node]) -> Result<()>,
) -> Result<()> {
    well_nodes_with(network, title, count, FlanneldOptions::bare(), work)
}

/// Runs a test as [`well_nodes`] does, with the flanneld options `options`.
pub(crate) fn well_nodes_with(
    network: &str,
    title: &str,
    count: u8,
    options: FlanneldOptions,
    work: impl FnOnce(&Lab, &Switch, &mut [Node]) -> Result<()>,
) -> Result<()> {
    Lab::run(title, |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, count)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(network)?;
        let mut nodes = ready_nodes(lab, &hosts, &store, &options.iface("enp0s8"))?;
        nodes.iter_mut().try_for_each(Node::grown)?;
        all_well(&mut nodes).context("at the start")?;
        work(lab, &lan, &mut nodes)
    })
}

/// Waits until no node has a finding and all nodes are ready.
pub(crate) fn all_well(nodes: &mut [Node]) -> Result<()> {
    for node in nodes {
        node.expect(&[])?;
        node.ready()?;
    }
    Ok(())
}
