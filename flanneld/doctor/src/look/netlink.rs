//! Interfaces, routes and route lookups from the kernel.

use super::unread::Unread;
use crate::fact::Fact;
use crate::facts::host::{Interface, LookupPurpose, NoRoute, Route, RouteLookup};
use netstate::netlink::host::HostReader;
use std::net::IpAddr;

/// An address whose route is looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The destination address.
    pub to: IpAddr,
    /// The owner of the address, as text.
    pub whose: String,
    /// The owner of the address, as a kind.
    pub kind: LookupPurpose,
}

/// Reads all three. Each is unavailable for itself if the kernel does not answer.
pub(super) async fn read(
    targets: &[Target],
) -> (
    Fact<Vec<Interface>>,
    Fact<Vec<Route>>,
    Fact<Vec<RouteLookup>>,
) {
    let mut reader = match HostReader::open() {
        Ok(opened) => opened,
        Err(error) => {
            let why = Unread::Netlink(error);
            return (
                Fact::unavailable(&why),
                Fact::unavailable(&why),
                Fact::unavailable(&why),
            );
        }
    };
    let interfaces = Fact::from_result(reader.interfaces().await.map_err(Unread::Interfaces));
    let routes = Fact::from_result(reader.routes(Route::carries).await.map_err(Unread::Routes));
    let addresses: Vec<IpAddr> = targets.iter().map(|target| target.to).collect();
    let answers = reader.look_up(&addresses).await;
    let lookup = |(target, by): (&Target, Result<_, NoRoute>)| RouteLookup {
        to: target.to,
        whose: target.whose.clone(),
        kind: target.kind,
        by,
    };
    (
        interfaces,
        routes,
        Fact::Known(targets.iter().zip(answers).map(lookup).collect()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[tokio::test]
    async fn host_has_a_loopback_interface_and_a_route_to_itself() {
        let target = Target {
            to: IpAddr::V4(Ipv4Addr::LOCALHOST),
            whose: "this host".to_owned(),
            kind: LookupPurpose::Peer,
        };
        let (interfaces, routes, lookups) = read(std::slice::from_ref(&target)).await;
        let lo = interfaces
            .known()
            .unwrap()
            .iter()
            .find(|interface| interface.loopback)
            .unwrap()
            .clone();
        assert!(
            lo.owns(target.to)
                && lo.up
                && lo
                    .mac
                    .is_some_and(|mac| mac.to_string() == "00:00:00:00:00:00"),
            "{lo:?}"
        );
        assert_eq!(
            lookups.known().unwrap()[0].by.as_ref().unwrap().index,
            lo.index
        );
        assert!(routes.known().is_some());
    }
}
