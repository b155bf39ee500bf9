//! Tests of the tables.

use super::*;

fn object(kind: ObjectKind, text: &str, number: Option<u8>, state: ObjectState) -> Object {
    let holder = number.map(|number| Holder {
        node: Some(format!("node-{number}")),
        subnet: format!("10.244.{number}.0/24").parse().unwrap(),
        address: format!("192.0.2.{number}").parse().unwrap(),
    });
    Object { kind, text: text.to_owned(), holder, state, found: None, why: None }
}

fn peer(number: u8) -> [Object; 3] {
    [
        object(
            ObjectKind::Fdb,
            &format!("02:00:00:00:00:0{number} dev flannel.1 dst 192.0.2.{number} self permanent"),
            Some(number),
            ObjectState::InSync,
        ),
        object(
            ObjectKind::Neighbour,
            &format!("10.244.{number}.0 dev flannel.1 lladdr 02:00:00:00:00:0{number} PERMANENT"),
            Some(number),
            ObjectState::InSync,
        ),
        object(
            ObjectKind::Route,
            &format!("10.244.{number}.0/24 via 10.244.{number}.0 dev flannel.1 proto 241 onlink"),
            Some(number),
            ObjectState::InSync,
        ),
    ]
}

fn foreign(text: &str, by: &str, own_subnet: bool, conflicts_with: &[&str]) -> Foreign {
    let conflicts_with = conflicts_with.iter().map(|what| (*what).to_owned()).collect();
    Foreign {
        kind: ObjectKind::Route,
        text: text.to_owned(),
        by: by.to_owned(),
        own_subnet,
        conflicts_with,
    }
}

fn routes(peers: impl IntoIterator<Item = u8>) -> Routes {
    let own = [
        object(ObjectKind::Link, "flannel.1 mtu 1450 up vxlan id 1", None, ObjectState::InSync),
        object(ObjectKind::Address, "10.244.1.0/32 dev flannel.1", None, ObjectState::InSync),
    ];
    let what = vec!["masquerade".to_owned(), "forward".to_owned()];
    Routes {
        objects: own.into_iter().chain(peers.into_iter().flat_map(peer)).collect(),
        foreign: vec![foreign(
            "10.244.1.0/24 dev cni0 proto kernel scope link",
            "the kernel, for an address of cni0",
            true,
            &[],
        )],
        rules: Some(Rules {
            with: "nftables".to_owned(),
            what,
            in_place: true,
            ..Rules::default()
        }),
        ..Routes::default()
    }
}

#[test]
fn healthy_node_has_a_line_for_each_object() {
    let want = "\
KIND       OBJECT                                                        FOR        STATE
link       flannel.1 mtu 1450 up vxlan id 1                              this node  in sync
address    10.244.1.0/32 dev flannel.1                                   this node  in sync
FDB        02:00:00:00:00:02 dev flannel.1 dst 192.0.2.2 self permanent  node-2     in sync
neighbour  10.244.2.0 dev flannel.1 lladdr 02:00:00:00:00:02 PERMANENT   node-2     in sync
route      10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 241 onlink   node-2     in sync

1 route more inside this node's own subnet, such as routes to its pods (--all)

rules: nftables: masquerade, forward; in place

5 objects, all in sync";
    assert_eq!(text(&routes([2]), false, Screen::plain()), want);
    let all = text(&routes([2]), true, Screen::plain());
    assert!(all.contains("\nroute  10.244.1.0/24 dev cni0 proto kernel scope link  the kernel, for an address of cni0\n"), "{all}");
}

#[test]
fn problems_come_first_and_the_rest_is_counted() {
    let mut many = routes(2..=99);
    let (route, by) = (
        "10.244.9.0/24 via 192.0.2.250 dev eth1 proto static",
        "an operator, NetworkManager or systemd-networkd",
    );
    many.foreign.push(foreign(route, by, false, &["10.244.9.0/24 (node-9)"]));
    let refused =
        many.objects.iter_mut().find(|object| object.text.starts_with("10.244.9.0/24")).unwrap();
    (refused.state, refused.found, refused.why) = (
        ObjectState::Refused,
        Some(route.to_owned()),
        Some("File exists (os error 17)".to_owned()),
    );
    let missing =
        many.objects.iter_mut().find(|object| object.text.starts_with("10.244.7.0 ")).unwrap();
    missing.state = ObjectState::Missing;
    let want = "\
KIND       OBJECT                                                       FOR     STATE
neighbour  10.244.7.0 dev flannel.1 lladdr 02:00:00:00:00:07 PERMANENT  node-7  missing
route      10.244.9.0/24 via 10.244.9.0 dev flannel.1 proto 241 onlink  node-9  refused  there is 10.244.9.0/24 via 192.0.2.250 dev eth1 proto static
link       1 more                                                               in sync
address    1 more                                                               in sync
FDB        98 more                                                              in sync
neighbour  97 more                                                              in sync
route      97 more                                                              in sync

refused: File exists (os error 17)

KIND   NOT FLANNEL'S                                        MADE BY
route  10.244.9.0/24 via 192.0.2.250 dev eth1 proto static  an operator, NetworkManager or systemd-networkd  conflicts with 10.244.9.0/24 (node-9)
1 route more inside this node's own subnet, such as routes to its pods (--all)

rules: nftables: masquerade, forward; in place

296 objects: 294 in sync, 1 missing, 1 refused; one foreign object conflicts";
    assert_eq!(text(&many, false, Screen::plain()), want);
    assert_eq!(
        text(&many, true, Screen::plain()).lines().filter(|line| line.ends_with("in sync")).count(),
        294
    );
}

#[test]
fn control_characters_in_the_document_are_escaped() {
    let hostile = "n\u{1b}[2J\r\nfake\u{202e}";
    let mut routes = routes([2]);
    for object in &mut routes.objects {
        object.holder = Some(Holder {
            node: Some(hostile.to_owned()),
            subnet: "10.244.2.0/24".parse().unwrap(),
            address: "192.0.2.2".parse().unwrap(),
        });
        (object.state, object.found, object.why) =
            (ObjectState::Refused, Some(hostile.to_owned()), Some(hostile.to_owned()));
    }
    routes.foreign = vec![foreign(hostile, hostile, false, &[hostile])];
    routes.rules = Some(Rules {
        with: "nftables".to_owned(),
        trouble: hostile.to_owned(),
        ..Rules::default()
    });
    let text = text(&routes, false, Screen::plain());
    assert!(
        text.chars().all(|c| c == '\n' || printable::is_printable(c))
            && !text.lines().any(|line| line.starts_with("fake")),
        "{text:?}"
    );
    assert!(text.contains("the traffic rules are not in place"), "{text}");
}

#[test]
fn text_fits_few_objects_and_none() {
    let mut one = Routes {
        objects: vec![object(ObjectKind::Route, "x", Some(2), ObjectState::InSync)],
        ..Routes::default()
    };
    assert!(text(&one, false, Screen::plain()).ends_with("\n\n1 object, in sync"));
    one.objects.clear();
    assert_eq!(text(&one, false, Screen::plain()), "no objects are needed in the kernel");
    let pods = (0..3)
        .map(|pod| foreign(&format!("10.244.1.{pod} dev veth{pod}"), "x", true, &[]))
        .collect();
    one.foreign = pods;
    assert!(text(&one, false, Screen::plain()).starts_with("3 routes more inside"));
}
