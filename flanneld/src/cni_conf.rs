//! Installs the container runtime's network configuration and keeps it installed: the runtime reports its node as ready once it has one,
//! so it gets it when pods can have a network.

use crate::health::Health;
use crate::health::condition::Condition;
use install_file::install;
use options::CniConf;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How often both files are compared: a mounted ConfigMap changes within a minute or two, and says nothing when it does.
const PERIOD: Duration = Duration::from_secs(5);

/// Keeps the configuration installed.
pub struct CniConfKeeper {
    conf: CniConf,
    health: Health,
    /// The content that was installed last.
    installed: Option<Vec<u8>>,
    trouble: String,
    /// Whether it was said that somebody else's content stays.
    told: bool,
}

impl CniConfKeeper {
    /// Has installed nothing yet.
    pub fn new(conf: CniConf, health: Health) -> Self {
        Self { conf, health, installed: None, trouble: String::new(), told: false }
    }

    /// Compares, and installs again at each change, until `stop`.
    ///
    /// # Cancel safety
    /// Each installation is atomic; it can be dropped at any time.
    pub async fn keep(mut self, stop: CancellationToken) {
        let run = async {
            loop {
                tokio::time::sleep(PERIOD).await;
                self.pass();
            }
        };
        stop.run_until_cancelled(run).await;
    }

    /// Compares once, and installs if that is due. A failure sets the condition, and is logged when its text changes.
    pub fn pass(&mut self) {
        let outcome = self.sync();
        self.health.condition(Condition::CniConf, outcome.as_ref().err().map(types::Problem::in_words));
        let trouble = outcome.err().unwrap_or_default();
        if !trouble.is_empty() && trouble != self.trouble {
            warn!("{trouble}");
        }
        self.trouble = trouble;
    }

    /// Installs the source's content where it is new, or where the destination is missing. What somebody wrote there after the last
    /// installation stays: an operator tries something out, or another program chains a plugin.
    fn sync(&mut self) -> Result<(), String> {
        let CniConf { source, destination } = &self.conf;
        let wanted = valid(source)?;
        let present = match std::fs::read(destination) {
            Ok(present) => Some(present),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(format!("cannot read the CNI configuration {}: {error}", destination.display())),
        };
        let new = self.installed.as_ref() != Some(&wanted);
        if present.as_ref() == Some(&wanted) {
            (self.installed, self.told) = (Some(wanted), false);
            return Ok(());
        }
        if present.is_some() && !new {
            if !self.told {
                info!("{} was changed by somebody else and stays so until {} changes", destination.display(), source.display());
                self.told = true;
            }
            return Ok(());
        }
        install(source, destination).map_err(|error| error.to_string())?;
        info!("installed the CNI configuration {}: the container runtime can start pods now", destination.display());
        (self.installed, self.told) = (Some(wanted), false);
        Ok(())
    }
}

/// The source's content. A runtime that finds an invalid file refuses others beside it, too.
fn valid(source: &Path) -> Result<Vec<u8>, String> {
    let content = std::fs::read(source)
        .map_err(|error| format!("cannot read the CNI configuration {}: {error}; on Kubernetes it is a key of the ConfigMap", source.display()))?;
    match serde_json::from_slice::<serde_json::Value>(&content) {
        Ok(serde_json::Value::Object(_)) => Ok(content),
        Ok(_) => Err(format!("the CNI configuration {} is not a JSON object: correct it; it was not installed", source.display())),
        Err(error) => Err(format!("the CNI configuration {} is not JSON: {error}: correct it; it was not installed", source.display())),
    }
}

#[cfg(test)]
mod tests;
