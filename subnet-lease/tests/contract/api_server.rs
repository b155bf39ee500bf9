//! The API server that all cases of a kind share.

use lab::{ApiClient, ApiServer, FakeApi, Families, Lab, Proxy, Uplink};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    /// kube-apiserver with its own etcd, on a host of the lab.
    Real,
    Fake,
}

/// It ends when the test drops `Api`.
pub(crate) enum Api {
    Real(Box<ApiServer>, #[expect(dead_code, reason = "a drop removes the host")] Lab),
    Fake(FakeApi),
}

impl Api {
    pub(crate) fn start(server: Server) -> Self {
        if server == Server::Fake {
            return Self::Fake(FakeApi::default());
        }
        let lab = Lab::create("API server of the contract").unwrap();
        let uplink = Uplink::enp0s8(&lab.create_switch("lan").unwrap(), 99).unwrap();
        let uplink = uplink.gateway("192.168.56.254").unwrap();
        let host = lab.create_host("api", &[uplink]).unwrap();
        Self::Real(Box::new(ApiServer::start(&host, Families::V4).unwrap()), lab)
    }

    /// It has the permissions of an administrator.
    pub(crate) fn admin(&self) -> ApiClient {
        match self {
            Self::Real(server, _) => server.admin(),
            Self::Fake(server) => server.admin(),
        }
    }

    /// On loopback. Through it, managers reach the server with the permissions that flannel's manifest grants.
    pub(crate) fn proxy(&self) -> Proxy {
        match self {
            Self::Real(server, _) => server.start_loopback_proxy(),
            Self::Fake(server) => server.serve_on_loopback(),
        }
        .unwrap()
    }
}
