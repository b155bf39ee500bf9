//! Tells the CNI plugin whether this daemon is ready, in the file beside subnet.env.

use crate::health::Health;
use run_dir::status_file::{Status, StatusError, Writer};
use std::path::PathBuf;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// How often the file is looked at: somebody else may have deleted it.
const PACE: Duration = Duration::from_millis(250);

/// Keeps the file until `stop`. It stays then: that nobody holds it any more says that the daemon has ended.
pub async fn keep(subnet_file: PathBuf, health: Health, stop: CancellationToken) {
    let mut writer = Writer::new(&subnet_file);
    let mut trouble = String::new();
    let mut put = || {
        let reasons = health.reasons().into_iter().map(|(condition, reason)| (condition.to_string(), reason)).collect();
        match writer.put(&Status { reasons, version: options::version(), vtep: health.vtep() }) {
            Ok(()) => trouble.clear(),
            // The claim on subnet.env ends one of the two.
            Err(error @ StatusError::Held(_)) => debug!("{error}"),
            Err(error) => {
                let text = error.to_string();
                if text != trouble {
                    warn!("{text}");
                    trouble = text;
                }
            }
        }
    };
    loop {
        put();
        tokio::select! {
            () = health.changed() => {}
            () = tokio::time::sleep(PACE) => {}
            () = stop.cancelled() => break,
        }
    }
    // What changed last is what is left to read.
    put();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::condition::Condition;

    #[tokio::test]
    async fn the_file_follows_the_health() {
        let folder = tempfile::tempdir().unwrap();
        let env = folder.path().join("subnet.env");
        let file = run_dir::status_file::path(&env);
        let (health, stop) = (Health::new(), CancellationToken::new());
        let keeper = tokio::spawn(keep(env, health.clone(), stop.clone()));
        let says = async |words: &str| {
            while !std::fs::read_to_string(&file).is_ok_and(|text| text.contains(words)) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let within = async |words: &str| tokio::time::timeout(Duration::from_secs(60), says(words)).await.unwrap();
        within(r#""reason":"starting""#).await;
        health.condition(Condition::Start, None);
        within(r#""ready":true"#).await;
        health.condition(Condition::Store, Some("etcd is silent"));
        within("etcd is silent").await;
        stop.cancel();
        keeper.await.unwrap();
        assert!(file.exists());
    }
}
