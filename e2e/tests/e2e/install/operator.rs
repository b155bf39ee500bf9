//! A simulated operator: a shell whose kubectl and helm use the lab's cluster, and the documentation's commands.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};
use lab::{
    ApiServer, Lab, User, binaries, describe_outcome, require_success, stdout_and_stderr, until_ok,
};

/// On the API server's host.
pub(crate) struct Operator {
    folder: PathBuf,
    namespace: String,
    kubeconfig: String,
}

impl Operator {
    /// The operator has administrator rights and a folder of its own.
    pub(crate) fn with_admin_rights(lab: &Lab, api: &ApiServer) -> Result<Operator> {
        let folder = lab.ensure_folder("operator")?;
        std::fs::create_dir_all(folder.join("bin"))?;
        std::os::unix::fs::symlink(
            binaries::kubernetes_program("kubectl")?,
            folder.join("bin/kubectl"),
        )?;
        if let Ok(helm) = binaries::helm_program() {
            std::os::unix::fs::symlink(helm, folder.join("bin/helm"))?;
        }
        let kubeconfig = api.write_kubeconfig(User::Admin, None)?.display().to_string();
        Ok(Operator { folder, namespace: api.host().netns().name().to_owned(), kubeconfig })
    }

    /// The operator runs commands in it.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs the command in bash. The exit code does not matter.
    pub(crate) fn run_in_bash(&self, command: &str) -> Result<Output> {
        let path = format!("{}:{}", self.folder.join("bin").display(), std::env::var("PATH")?);
        let mut shell = Command::new("ip");
        shell.args(["netns", "exec", &self.namespace, "bash", "-o", "pipefail", "-c", command]);
        Ok(shell
            .current_dir(&self.folder)
            .env("PATH", path)
            .env("KUBECONFIG", &self.kubeconfig)
            .output()?)
    }

    /// Repeats a command until it prints something or fails with code 1. On a busy machine, `kubectl exec` may lose the output.
    pub(crate) fn rerun_until_output(&self, command: &str) -> Result<Output> {
        until_ok(&format!("{command} prints something"), || {
            let output = self.run_in_bash(command)?;
            // With code 1, the command or kubectl itself reports an error.
            ensure!(
                !output.stdout.is_empty() || output.status.code() == Some(1),
                "{}",
                describe_outcome(&output)
            );
            Ok(output)
        })
    }

    /// The result is the whole output. Fails if the command fails.
    pub(crate) fn run(&self, command: &str) -> Result<String> {
        let output = self.run_in_bash(command)?;
        require_success(command, &output)?;
        Ok(stdout_and_stderr(&output))
    }

    /// Fails if a command fails.
    pub(crate) fn run_all(&self, commands: &[&str]) -> Result<()> {
        commands.iter().try_for_each(|command| self.run(command).map(drop))
    }
}

/// Shell commands in a document, without comments, by code block.
pub(crate) fn shell_command_blocks(page: &str) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            inside = kind == "sh";
            if inside {
                found.push(Vec::new());
            }
        } else if inside && let Some(block) = found.last_mut() {
            block.extend(
                Some(line.split("  #").next().unwrap_or_default().trim().to_owned())
                    .filter(|command| !command.is_empty()),
            );
        }
    }
    found
}

/// The commands that docs/troubleshooting.md lists for nodes with the same address, one list for each remedy: for systemd, for a DaemonSet with an
/// argument, and for a DaemonSet with a variable.
pub(crate) fn documented_remedies_if_all_addresses_are_equal() -> Result<[Vec<String>; 3]> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/troubleshooting.md");
    let page = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let heading = "### All nodes have the same address";
    let part = page.split_once(heading).with_context(|| format!("no {heading}"))?.1;
    let remedies: Vec<Vec<String>> =
        shell_command_blocks(part.split("\n### ").next().unwrap_or_default());
    if let Some(long) = remedies.iter().find(|remedy| remedy.len() > 4) {
        bail!("more than four commands: {long:?}");
    }
    remedies.try_into().map_err(|remedies| anyhow::anyhow!("three remedies, not {remedies:#?}"))
}
