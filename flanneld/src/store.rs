//! Opens the store that the settings name.

use options::{Settings, Store};
use std::sync::Arc;
use subnet_lease::dir::DirManager;
use subnet_lease::etcd::EtcdManager;
use subnet_lease::kube::{KubeManager, KubeOptions};
use subnet_lease::manager::{Error, SubnetManager};

/// Opens the store. For etcd and a directory this does nothing yet: requests wait for them. For Kubernetes it finds out which Node this is.
///
/// # Errors
/// `Unavailable` while the store cannot be opened yet, `Refused` if it never can.
pub async fn open(settings: &Settings) -> Result<Arc<dyn SubnetManager>, Error> {
    Ok(match &settings.store {
        Store::Dir(path) => Arc::new(DirManager::new(path.clone())),
        Store::Etcd(etcd) => Arc::new(EtcdManager::new(etcd.options())),
        Store::Kube(kube) => Arc::new(KubeManager::open(KubeOptions::clone(kube)).await?),
    })
}
