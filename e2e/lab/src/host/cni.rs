//! The CNI part of a host's container runtime, which executes plugins for pods.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::host::Host;
use crate::net::netns::Netns;

/// Executes a CNI plugin on a host.
#[derive(Debug, Clone)]
pub struct Cni {
    host: Host,
    plugin: PathBuf,
    path: PathBuf,
}

#[derive(Debug, Clone)]
pub struct CniAnswer {
    /// Null if the standard output is not JSON.
    pub output: Value,
    pub stderr: String,
    pub time: Duration,
    ok: bool,
}

impl CniAnswer {
    /// The CNI error code, or 0 on success.
    pub fn code(&self) -> u64 {
        if self.ok {
            0
        } else {
            self.output.get("code").and_then(Value::as_u64).unwrap_or(u64::MAX)
        }
    }

    /// The output of a plugin that succeeded. The error contains all output.
    pub fn ok(self) -> Result<Value> {
        ensure!(self.ok, "the plugin failed: {} {}", self.output, self.stderr);
        Ok(self.output)
    }
}

impl Host {
    /// `path` is the folder in which the plugin finds other plugins.
    pub fn cni(&self, plugin: &Path, path: &Path) -> Cni {
        Cni { host: self.clone(), plugin: plugin.to_owned(), path: path.to_owned() }
    }

    /// The pod has no interfaces, as when a container runtime has created it before ADD.
    pub fn create_empty_pod_netns(&self, name: &str) -> Result<Netns> {
        self.site().create_netns(&format!("{}-{name}", self.name()))
    }
}

impl Cni {
    /// Runs the plugin for one interface. The container ID is the name of the pod's namespace.
    pub fn call(
        &self,
        verb: &str,
        pod: Option<&Netns>,
        interface: &str,
        conf: &Value,
    ) -> Result<CniAnswer> {
        let mut command = Command::new(&self.plugin);
        command.env("CNI_COMMAND", verb).env("CNI_PATH", &self.path);
        if let Some(pod) = pod {
            command
                .env("CNI_CONTAINERID", pod.name())
                .env("CNI_NETNS", pod.path())
                .env("CNI_IFNAME", interface);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let conf = conf.to_string();
        let run = || -> Result<_> {
            let start = Instant::now();
            let mut child = command.spawn()?;
            // A plugin that fails early does not read its standard input.
            let _ = child.stdin.take().map(|mut stdin| stdin.write_all(conf.as_bytes()));
            let output = child.wait_with_output()?;
            Ok((output, start.elapsed()))
        };
        let (output, time) = self
            .host
            .netns()
            .run(run)?
            .with_context(|| format!("executing {}", self.plugin.display()))?;
        Ok(CniAnswer {
            output: serde_json::from_slice(&output.stdout).unwrap_or_default(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            time,
            ok: output.status.success(),
        })
    }
}
