//! Tests that the daemon recreates and rewrites subnet.env.

use super::*;
use std::time::Duration;
use types::Dual;

fn plain() -> SubnetEnv {
    SubnetEnv {
        networks: Dual::V4("10.5.0.0/16".parse().unwrap()),
        subnets: Dual::V4("10.5.72.0/24".parse().unwrap()),
        mtu: 1450,
        ip_masq: false,
        range_ends: Vec::new(),
    }
}

/// Dual-stack, and different from [`plain`].
fn dual() -> SubnetEnv {
    SubnetEnv {
        networks: Dual::Both("10.42.0.0/16".parse().unwrap(), "2001:cafe:42::/56".parse().unwrap()),
        subnets: Dual::Both("10.42.0.0/24".parse().unwrap(), "2001:cafe:42::/64".parse().unwrap()),
        ..plain()
    }
}

async fn until(what: &str, holds: impl FnMut() -> bool) {
    wait::until_async(what, holds).await.unwrap();
}

#[tokio::test]
async fn subnet_env_is_rewritten_when_deleted_or_changed() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("flannel");
    let path = folder.join("subnet.env");
    let (sender, receiver) = watch::channel(plain());
    let (health, stop) = (Health::new(), CancellationToken::new());
    let task = tokio::spawn(keep(path.clone(), receiver, health.clone(), stop.clone()));
    let is = |env: SubnetEnv| {
        let path = path.clone();
        move || std::fs::read_to_string(&path).is_ok_and(|text| text == env.render())
    };
    until("written at first", is(plain())).await;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        std::fs::remove_file(&path).unwrap();
        until("deleted", is(plain())).await;
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    std::fs::rename(&path, folder.join("elsewhere")).unwrap();
    until("moved away", is(plain())).await;
    sender.send_replace(dual());
    until("changed", is(dual())).await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    std::fs::remove_dir_all(&folder).unwrap();
    until("its folder deleted", is(dual())).await;
    assert!(
        health.reasons().iter().all(|(name, _)| *name == Condition::Start),
        "{:?}",
        health.reasons()
    );
    stop.cancel();
    task.await.unwrap();
    assert!(path.exists(), "it stays when the daemon ends");
}

#[tokio::test]
async fn write_failure_sets_the_condition_until_it_ends() {
    let root = tempfile::tempdir().unwrap();
    let blocker = root.path().join("flannel");
    std::fs::write(&blocker, "").unwrap();
    let (_sender, receiver) = watch::channel(plain());
    let (health, stop) = (Health::new(), CancellationToken::new());
    let task =
        tokio::spawn(keep(blocker.join("subnet.env"), receiver, health.clone(), stop.clone()));
    let failed = || health.reasons().iter().any(|(name, _)| *name == Condition::SubnetEnv);
    until("told", failed).await;
    std::fs::remove_file(&blocker).unwrap();
    until("resolved", || !failed()).await;
    stop.cancel();
    task.await.unwrap();
}
