//! Installs the container runtime's network configuration and keeps it installed. The runtime reports the node as
//! ready once this configuration exists, so flanneld installs it only when pods can have a network.

use crate::health::Health;
use crate::health::condition::Condition;
use install_file::install;
use options::CniConf;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use types::Problem;
use types::file::{self, IrregularFileError, Links};

/// Interval at which flanneld compares the source with the installed configuration. kubelet updates a mounted
/// ConfigMap within a minute or two of a change, and sends no event.
const PERIOD: Duration = Duration::from_secs(5);
/// In bytes. A ConfigMap is not larger.
const MAX_CONF: u64 = 1024 * 1024;

/// Also installs changes of the source.
pub struct CniConfKeeper {
    conf: CniConf,
    health: Health,
    installed: Option<Vec<u8>>,
    trouble: String,
    /// Whether flanneld has already logged that it keeps contents that another program wrote.
    change_logged: bool,
}

impl CniConfKeeper {
    pub fn new(conf: CniConf, health: Health) -> Self {
        Self { conf, health, installed: None, trouble: String::new(), change_logged: false }
    }

    /// Compares the source with the installed configuration periodically until `stop`, and installs it again if
    /// necessary.
    ///
    /// # Cancel safety
    /// The caller can drop the future at any time, because each installation is atomic.
    pub async fn keep(mut self, stop: CancellationToken) {
        let run = async {
            loop {
                tokio::time::sleep(PERIOD).await;
                // A folder of the host may be on a file system that does not respond.
                let passed = tokio::task::spawn_blocking(move || {
                    self.pass();
                    self
                });
                match passed.await {
                    Ok(keeper) => self = keeper,
                    Err(error) => {
                        error!(%error, "flanneld no longer keeps the CNI configuration");
                        return;
                    }
                }
            }
        };
        stop.run_until_cancelled(run).await;
    }

    /// Compares once, and installs if necessary. A failure sets [`Condition::CniConf`]. flanneld logs it when the
    /// error's text changes.
    pub fn pass(&mut self) {
        let outcome = self.sync();
        self.health.condition(Condition::CniConf, outcome.as_ref().err().cloned());
        let trouble = outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
        if let Err(error) = outcome
            && trouble != self.trouble
        {
            warn!(code = &*error.code, error = %trouble, "cannot install the CNI configuration, retrying");
        }
        self.trouble = trouble;
    }

    /// Installs the source's contents if they are new, or if the destination is missing. Keeps contents that an
    /// operator or another program wrote after the last installation, for example to test a change or to chain a
    /// plugin.
    fn sync(&mut self) -> Result<(), Problem> {
        let CniConf { source, destination } = &self.conf;
        let wanted = valid(source)?;
        let present = match file::read(destination, MAX_CONF, Links::Followed) {
            Ok(present) => Some(present),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            // A pipe or a device would stop the container runtime, and no operator edits it.
            Err(error) if is_irregular(&error) => None,
            Err(cause) => {
                let text =
                    format!("cannot read the CNI configuration {}: {cause}", destination.display());
                return Err(Problem::new("cni-conf-destination", text));
            }
        };
        let new = self.installed.as_ref() != Some(&wanted);
        if present.as_ref() == Some(&wanted) {
            (self.installed, self.change_logged) = (Some(wanted), false);
            return Ok(());
        }
        if present.is_some() && !new {
            if !self.change_logged {
                info!(
                    path = %destination.display(),
                    source = %source.display(),
                    "another program changed the CNI configuration; flanneld keeps the change until the source changes"
                );
                self.change_logged = true;
            }
            return Ok(());
        }
        install(source, destination)
            .map_err(|error| Problem::new(error.code(), error.to_string()))?;
        info!(
            path = %destination.display(),
            "installed the CNI configuration: the container runtime can start pods now"
        );
        (self.installed, self.change_logged) = (Some(wanted), false);
        Ok(())
    }
}

fn is_irregular(error: &io::Error) -> bool {
    let why = error.get_ref().and_then(|why| why.downcast_ref());
    matches!(why, Some(IrregularFileError::Other | IrregularFileError::Link))
}

/// Checks that the source is a JSON object. A runtime that finds an invalid file also rejects the other files in the
/// directory.
fn valid(source: &Path) -> Result<Vec<u8>, Problem> {
    let file = source.display();
    let content = file::read(source, MAX_CONF, Links::Followed).map_err(|cause| {
        let text = format!("cannot read the CNI configuration {file}: {cause}; on Kubernetes, check the key of the ConfigMap");
        Problem::new("cni-conf-source", text)
    })?;
    match serde_json::from_slice::<serde_json::Value>(&content) {
        Ok(serde_json::Value::Object(_)) => Ok(content),
        Ok(_) => Err(Problem::new(
            "cni-conf-not-an-object",
            format!(
                "the CNI configuration {file} is not a JSON object, so flanneld did not install it; correct the file"
            ),
        )),
        Err(cause) => Err(Problem::new(
            "cni-conf-not-json",
            format!(
                "the CNI configuration {file} is not JSON, so flanneld did not install it: {cause}; correct the file"
            ),
        )),
    }
}

#[cfg(test)]
mod tests;
