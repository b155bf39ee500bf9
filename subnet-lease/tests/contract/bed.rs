//! What the suite needs of a store: managers on it, and a hand that writes past them.

use crate::etcd_server::{EtcdServer, Version};
use std::sync::Arc;
use subnet_lease::dir::DirManager;
use subnet_lease::etcd::{EtcdManager, EtcdOptions};
use subnet_lease::manager::SubnetManager;

pub enum Bed {
    Dir(tempfile::TempDir),
    Etcd(Box<EtcdServer>),
}

pub const PREFIX: &str = "/coreos.com/network";

pub fn directory() -> Bed {
    Bed::Dir(tempfile::tempdir().unwrap())
}

pub fn etcd_3_4() -> Bed {
    etcd(Version::V3_4)
}

pub fn etcd_3_6() -> Bed {
    etcd(Version::V3_6)
}

fn etcd(version: Version) -> Bed {
    let mut server = EtcdServer::new(version);
    server.start();
    Bed::Etcd(Box::new(server))
}

impl Bed {
    pub fn manager(&self) -> Arc<dyn SubnetManager> {
        match self {
            Bed::Dir(folder) => Arc::new(DirManager::new(folder.path().to_owned())),
            Bed::Etcd(server) => Arc::new(EtcdManager::new(self.options(server))),
        }
    }

    pub fn options(&self, server: &EtcdServer) -> EtcdOptions {
        EtcdOptions { endpoints: vec![server.endpoint()], prefix: PREFIX.to_owned(), ..EtcdOptions::default() }
    }

    pub fn etcd(&mut self) -> &mut EtcdServer {
        match self {
            Bed::Etcd(server) => server,
            Bed::Dir(_) => panic!("no etcd here"),
        }
    }

    pub fn configure(&self, text: &str) {
        match self {
            Bed::Dir(folder) => std::fs::write(folder.path().join("config"), text).unwrap(),
            Bed::Etcd(server) => {
                server.ctl(&["put", &format!("{PREFIX}/config"), text]);
            }
        }
    }

    /// Writes a key as an operator would.
    pub fn put(&self, key: &str, value: &str) {
        match self {
            Bed::Dir(folder) => {
                let subnets = folder.path().join("subnets");
                std::fs::create_dir_all(&subnets).unwrap();
                std::fs::write(subnets.join(".hand"), value).unwrap();
                std::fs::rename(subnets.join(".hand"), subnets.join(key)).unwrap();
            }
            Bed::Etcd(server) => server.put(&format!("{PREFIX}/subnets/{key}"), value),
        }
    }

    /// Writes a key of any bytes, or deletes it.
    pub fn put_bytes(&self, key: &[u8], there: bool) {
        use std::os::unix::ffi::OsStrExt;
        let key = std::ffi::OsStr::from_bytes(key);
        match self {
            Bed::Dir(folder) => {
                let path = folder.path().join("subnets").join(key);
                if there { std::fs::write(path, "{}").unwrap() } else { std::fs::remove_file(path).unwrap() }
            }
            Bed::Etcd(server) => {
                let mut full = std::ffi::OsString::from(format!("{PREFIX}/subnets/"));
                full.push(key);
                if there {
                    server.ctl_os(&["put".as_ref(), &full, "{}".as_ref()]);
                } else {
                    server.ctl_os(&["del".as_ref(), &full]);
                }
            }
        }
    }

    pub fn delete(&self, key: &str) {
        match self {
            Bed::Dir(folder) => std::fs::remove_file(folder.path().join("subnets").join(key)).unwrap(),
            Bed::Etcd(server) => {
                server.ctl(&["del", &format!("{PREFIX}/subnets/{key}")]);
            }
        }
    }

    pub fn get(&self, key: &str) -> Option<String> {
        match self {
            Bed::Dir(folder) => std::fs::read_to_string(folder.path().join("subnets").join(key)).ok(),
            Bed::Etcd(server) => {
                let text = server.ctl(&["get", "--print-value-only", &format!("{PREFIX}/subnets/{key}")]);
                let text = text.trim_end_matches('\n').to_owned();
                (!text.is_empty()).then_some(text)
            }
        }
    }

    pub fn keys(&self) -> Vec<String> {
        match self {
            Bed::Dir(folder) => std::fs::read_dir(folder.path().join("subnets"))
                .map(|files| files.map(|file| file.unwrap().file_name().into_string().unwrap()).filter(|name| !name.starts_with('.')).collect())
                .unwrap_or_default(),
            Bed::Etcd(server) => server
                .ctl(&["get", "--prefix", "--keys-only", &format!("{PREFIX}/subnets/")])
                .lines()
                .filter_map(|line| line.strip_prefix(&format!("{PREFIX}/subnets/")).map(str::to_owned))
                .collect(),
        }
    }

    /// The lease that a key hangs on, in decimal; 0 for none.
    pub fn lease_of(&self, key: &str) -> i64 {
        match self {
            Bed::Dir(_) => 0,
            Bed::Etcd(server) => {
                let text = server.ctl(&["get", "-w", "json", &format!("{PREFIX}/subnets/{key}")]);
                let json: serde_json::Value = serde_json::from_str(&text).unwrap();
                json["kvs"][0]["lease"].as_i64().unwrap_or(0)
            }
        }
    }
}
