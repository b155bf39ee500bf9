//! Installs the container runtime's network configuration and keeps it installed: the runtime reports its node as ready once it has one,
//! so it gets it when pods can have a network.

use crate::health::Health;
use crate::health::condition::Condition;
use install_file::{InstallError, install};
use options::CniConf;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use types::Coded;
use types::problem::text;

/// How often both files are compared: a mounted ConfigMap changes within a minute or two, and says nothing when it does.
const PERIOD: Duration = Duration::from_secs(5);

/// Why the configuration is not installed.
#[derive(Debug)]
pub enum ConfError {
    /// The source cannot be read.
    Source {
        /// The source.
        file: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The destination cannot be read.
    Destination {
        /// The destination.
        file: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The source is not JSON.
    NotJson {
        /// The source.
        file: PathBuf,
        /// Where it is wrong.
        cause: serde_json::Error,
    },
    /// The source is JSON and no object.
    NotAnObject {
        /// The source.
        file: PathBuf,
    },
    /// It cannot be installed.
    Install(InstallError),
}

impl Coded for ConfError {
    fn code(&self) -> &'static str {
        match self {
            Self::Source { .. } => "cni-conf-source",
            Self::Destination { .. } => "cni-conf-destination",
            Self::NotJson { .. } => "cni-conf-not-json",
            Self::NotAnObject { .. } => "cni-conf-not-an-object",
            Self::Install(error) => error.code(),
        }
    }
}

impl fmt::Display for ConfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text(f, self, |f| match self {
            Self::Source { file, cause } => {
                write!(
                    f,
                    "cannot read the CNI configuration {}: {cause}; on Kubernetes it is a key of the ConfigMap",
                    file.display()
                )
            }
            Self::Destination { file, cause } => write!(
                f,
                "cannot read the CNI configuration {}: {cause}",
                file.display()
            ),
            Self::NotJson { file, cause } => {
                write!(
                    f,
                    "the CNI configuration {} is not JSON: {cause}: correct it; it was not installed",
                    file.display()
                )
            }
            Self::NotAnObject { file } => {
                write!(
                    f,
                    "the CNI configuration {} is not a JSON object: correct it; it was not installed",
                    file.display()
                )
            }
            Self::Install(error) => write!(f, "{error}"),
        })
    }
}

impl std::error::Error for ConfError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Source { cause, .. } | Self::Destination { cause, .. } => Some(cause),
            Self::NotJson { cause, .. } => Some(cause),
            Self::NotAnObject { .. } => None,
            Self::Install(error) => Some(error),
        }
    }
}

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
        Self {
            conf,
            health,
            installed: None,
            trouble: String::new(),
            told: false,
        }
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
        self.health.condition(
            Condition::CniConf,
            outcome.as_ref().err().map(types::Problem::of),
        );
        let trouble = outcome
            .as_ref()
            .err()
            .map(ToString::to_string)
            .unwrap_or_default();
        if let Err(error) = outcome
            && trouble != self.trouble
        {
            warn!(code = error.code(), "{trouble}");
        }
        self.trouble = trouble;
    }

    /// Installs the source's content where it is new, or where the destination is missing. What somebody wrote there after the last
    /// installation stays: an operator tries something out, or another program chains a plugin.
    fn sync(&mut self) -> Result<(), ConfError> {
        let CniConf {
            source,
            destination,
        } = &self.conf;
        let wanted = valid(source)?;
        let present = match std::fs::read(destination) {
            Ok(present) => Some(present),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(cause) => {
                return Err(ConfError::Destination {
                    file: destination.clone(),
                    cause,
                });
            }
        };
        let new = self.installed.as_ref() != Some(&wanted);
        if present.as_ref() == Some(&wanted) {
            (self.installed, self.told) = (Some(wanted), false);
            return Ok(());
        }
        if present.is_some() && !new {
            if !self.told {
                info!(
                    "{} was changed by somebody else and stays so until {} changes",
                    destination.display(),
                    source.display()
                );
                self.told = true;
            }
            return Ok(());
        }
        install(source, destination).map_err(ConfError::Install)?;
        info!(
            "installed the CNI configuration {}: the container runtime can start pods now",
            destination.display()
        );
        (self.installed, self.told) = (Some(wanted), false);
        Ok(())
    }
}

/// The source's content. A runtime that finds an invalid file refuses others beside it, too.
fn valid(source: &Path) -> Result<Vec<u8>, ConfError> {
    let file = source.to_owned();
    let content = std::fs::read(source).map_err(|cause| ConfError::Source {
        file: file.clone(),
        cause,
    })?;
    match serde_json::from_slice::<serde_json::Value>(&content) {
        Ok(serde_json::Value::Object(_)) => Ok(content),
        Ok(_) => Err(ConfError::NotAnObject { file }),
        Err(cause) => Err(ConfError::NotJson { file, cause }),
    }
}

#[cfg(test)]
mod tests;
