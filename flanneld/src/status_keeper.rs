//! Writes the status file next to subnet.env. From it, the CNI plugin learns whether this daemon is ready.

use crate::health::Health;
use run_dir::status_file::{Reason, Status, StatusError, Writer};
use std::path::PathBuf;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Interval at which the daemon checks the status file, because another program may have deleted it.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Maintains the status file until `stop`, and then keeps it. If no process holds its lock, the daemon has ended.
pub async fn keep(subnet_file: PathBuf, health: Health, stop: CancellationToken) {
    let before = run_dir::status_file::read(&subnet_file).ok().flatten();
    let mut pods = before.map(|file| file.status.pods).unwrap_or_default();
    let mut writer = Writer::new(&subnet_file);
    let mut trouble = String::new();
    let mut put = || {
        let reasons = health
            .reasons()
            .into_iter()
            .map(|(condition, problem)| Reason::new(condition.as_str(), problem))
            .collect();
        if let Some(now) = health.pods() {
            pods = now;
        }
        match writer.put(&Status { reasons, version: options::version(), pods: pods.clone() }) {
            Ok(()) => trouble.clear(),
            // The claim on subnet.env ends one of the daemons.
            Err(error @ StatusError::Held(_)) => {
                debug!(error = %error, "another daemon uses the status file");
            }
            Err(error) => {
                let text = error.to_string();
                if text != trouble {
                    warn!(error = %text, "cannot write the status file, retrying");
                    trouble = text;
                }
            }
        }
    };
    loop {
        put();
        tokio::select! {
            () = health.changed() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            () = stop.cancelled() => break,
        }
    }
    // The last state stays readable.
    put();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::condition::Condition;
    use run_dir::status_file::{self, Pods};
    use types::Problem;

    #[tokio::test]
    async fn status_file_follows_the_health() {
        let folder = tempfile::tempdir().unwrap();
        let env = folder.path().join("subnet.env");
        let file = status_file::path(&env);
        let (health, stop) = (Health::new(), CancellationToken::new());
        let keeper = tokio::spawn(keep(env, health.clone(), stop.clone()));
        let contains = async |words: &str| {
            while !std::fs::read_to_string(&file).is_ok_and(|text| text.contains(words)) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let within = async |words: &str| {
            tokio::time::timeout(Duration::from_secs(60), contains(words)).await.unwrap();
        };
        within(r#""reason":"starting""#).await;
        health.clear(Condition::Start);
        within(r#""ready":true"#).await;
        health.fail(Condition::Store, Problem::in_words("etcd is silent"));
        within("etcd is silent").await;
        stop.cancel();
        keeper.await.unwrap();
        assert!(file.exists());
    }

    /// Applies `events`, stops the keeper, and reads the data about pods from the status file.
    async fn left(env: &std::path::Path, events: impl FnOnce(&Health)) -> Pods {
        let (health, stop) = (Health::new(), CancellationToken::new());
        events(&health);
        stop.cancel();
        keep(env.to_owned(), health, stop).await;
        status_file::read(env).unwrap().unwrap().status.pods
    }

    #[tokio::test]
    async fn new_pods_are_stopped_only_by_conditions_they_need() {
        let folder = tempfile::tempdir().unwrap();
        let env = folder.path().join("subnet.env");
        for condition in Condition::ALL {
            let pods = left(&env, |health| {
                health.clear(Condition::Start);
                health.fail(condition, Problem::in_words("broken"));
            });
            let reasons = pods.await.reasons;
            let wanted =
                ["kernel", "rules", "subnet.env", "underlay"].contains(&condition.as_str());
            let expected = if wanted {
                vec![Reason::new(condition.as_str(), Problem::in_words("broken"))]
            } else {
                Vec::new()
            };
            // A start changes nothing: the state that the condition left remains.
            if condition != Condition::Start {
                assert_eq!(reasons, expected, "{condition}");
            }
            left(&env, |health| health.clear(Condition::Start)).await;
        }
    }

    #[tokio::test]
    async fn start_keeps_the_previous_state_of_pods() {
        let folder = tempfile::tempdir().unwrap();
        let env = folder.path().join("subnet.env");
        assert_eq!(left(&env, |_| ()).await, Pods::default());
        let serving = |health: &Health| {
            health.carried_by(vec!["flannel.1".to_owned()]);
            health.clear(Condition::Start);
        };
        let well = Pods { reasons: Vec::new(), devices: vec!["flannel.1".to_owned()] };
        assert_eq!(left(&env, serving).await, well);
        assert_eq!(
            left(&env, |health| health.fail(Condition::Store, Problem::in_words("silent"))).await,
            well,
            "a daemon that starts"
        );
        let lost = Pods {
            reasons: vec![Reason::new("lease", Problem::in_words("taken"))],
            ..well.clone()
        };
        let restarted = |health: &Health| {
            serving(health);
            health.start_over(&Problem::in_words("moved"));
        };
        assert_eq!(left(&env, restarted).await, well, "a network that restarts");
        let taken = |health: &Health| {
            serving(health);
            health.lost(Problem::in_words("taken"));
        };
        assert_eq!(left(&env, taken).await, lost);
        assert_eq!(left(&env, |_| ()).await, lost, "the next daemon has no subnet yet");
        assert_eq!(left(&env, serving).await, well);
    }
}
