//! Random sequences of calls, kills and faults against a model of the delegate. Two invariants hold at any
//! time: every interface that the delegate holds has a file, and no call removes an interface in use.
//!
//! The environment variable `FLANNEL_TEST_CNI_SEQUENCES` sets the number of sequences.

use flannel_cni::attachment::Attachment;
use flannel_cni::attachment_store;
use flannel_cni::call::{Call, Verb};
use flannel_cni::conf::Conf;
use flannel_cni::delegate::{Delegate, DelegateError, Order};
use flannel_cni::error::CniError;
use flannel_cni::verbs::{Context, run};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

const SEQUENCES: u32 = 10_000;
const NETWORKS: [&str; 2] = ["cbr0", "other"];
const CONTAINERS: [&str; 2] = ["c0ffee", "c0"];
const INTERFACES: [&str; 2] = ["eth0", "net1"];

/// The result of the next call of the delegate, or when a signal kills the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Succeeds,
    NotStarted,
    FailsBefore,
    FailsAfter,
    /// Before the delegate makes any change.
    KilledBefore,
    /// After the delegate has finished.
    KilledAfter,
}

/// The payload of the panic that simulates a kill.
struct Killed;

/// A model of the delegate, with the interfaces that it holds in each network.
#[derive(Default)]
struct World {
    held: RefCell<BTreeSet<(String, Attachment)>>,
    fates: RefCell<Vec<Fate>>,
    refused: Cell<bool>,
}

impl Delegate for World {
    fn call(&self, order: &Order<'_>) -> Result<Vec<u8>, DelegateError> {
        let fate = self.fates.borrow_mut().pop().unwrap_or(Fate::Succeeds);
        let error = |msg: &str| CniError::new(100, msg);
        match fate {
            Fate::NotStarted => return Err(DelegateError::NotStarted(error("not started"))),
            Fate::FailsBefore => return Err(DelegateError::Failed(error("failed before"))),
            Fate::KilledBefore => resume_unwind(Box::new(Killed)),
            _ => {}
        }
        let netconf: Value = serde_json::from_slice(order.netconf).unwrap();
        assert_eq!((order.program, netconf["type"].as_str()), ("bridge", Some("bridge")));
        let key = (netconf["name"].as_str().unwrap().to_owned(), order.attachment.clone());
        match order.verb {
            Verb::Add if !self.held.borrow_mut().insert(key.clone()) => {
                self.refused.set(true);
                return Err(DelegateError::Failed(error("duplicate")));
            }
            Verb::Del => {
                self.held.borrow_mut().remove(&key);
            }
            _ => {}
        }
        match fate {
            Fate::FailsAfter => Err(DelegateError::Failed(error("failed after"))),
            Fate::KilledAfter => resume_unwind(Box::new(Killed)),
            _ => Ok(b"{}".to_vec()),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Call {
        verb: Verb,
        network: usize,
        container: usize,
        interface: usize,
        fates: Vec<Fate>,
    },
    /// `live` has one bit for each container whose attachments are valid.
    Gc {
        network: usize,
        live: usize,
        fates: Vec<Fate>,
    },
    /// A power failure or a kill that leaves remains of an attachment.
    Leave {
        remains: Remains,
        container: usize,
        interface: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum Remains {
    /// An empty file.
    Damaged,
    /// An incomplete temporary file.
    Torn,
    /// Only the mark, before the file is written or after it is removed.
    Marked,
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        6 => Just(Fate::Succeeds),
        1 => Just(Fate::NotStarted),
        1 => Just(Fate::FailsBefore),
        1 => Just(Fate::FailsAfter),
        1 => Just(Fate::KilledBefore),
        1 => Just(Fate::KilledAfter),
    ];
    prop::collection::vec(fate, 0..4)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let verb = prop_oneof![4 => Just(Verb::Add), 3 => Just(Verb::Del), 1 => Just(Verb::Check)];
    let call = (verb, 0..2usize, 0..2usize, 0..2usize, fates()).prop_map(
        |(verb, network, container, interface, fates)| Step::Call {
            verb,
            network,
            container,
            interface,
            fates,
        },
    );
    let gc = (0..2usize, 0..4usize, fates()).prop_map(|(network, live, fates)| Step::Gc {
        network,
        live,
        fates,
    });
    let remains = prop_oneof![Just(Remains::Damaged), Just(Remains::Torn), Just(Remains::Marked)];
    let leave = (remains, 0..2usize, 0..2usize)
        .prop_map(|(remains, container, interface)| Step::Leave { remains, container, interface });
    prop::collection::vec(prop_oneof![12 => call, 2 => gc, 3 => leave], 1..14)
}

fn attachment(container: usize, interface: usize) -> Attachment {
    Attachment {
        container: CONTAINERS[container].to_owned(),
        interface: INTERFACES[interface].to_owned(),
    }
}

struct Sequence<'a> {
    folder: &'a Path,
    world: World,
    /// Interfaces of successful ADD calls, except those that a later DEL or GC tried to remove.
    promised: BTreeSet<(String, Attachment)>,
    /// Interfaces whose last ADD was killed.
    interrupted: BTreeSet<(String, Attachment)>,
}

/// `None` after a kill of the plugin.
type Ended = Option<Result<Vec<u8>, CniError>>;

impl Sequence<'_> {
    fn run(
        &mut self,
        verb: Verb,
        network: &str,
        attachment: &Attachment,
        more: &Value,
        fates: &[Fate],
    ) -> Ended {
        let mut conf = json!({"name": network, "cniVersion": "1.1.0", "subnetFile": self.folder.join("subnet.env"), "dataDir": self.folder.join("data")});
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let conf = Conf::parse(conf.to_string().as_bytes()).unwrap();
        let call = Call {
            verb,
            attachment: attachment.clone(),
            netns: String::new(),
            netns_override: false,
            conf,
        };
        *self.world.fates.borrow_mut() = fates.iter().rev().copied().collect();
        self.world.refused.set(false);
        let context = Context { delegate: &self.world, patience: Duration::ZERO };
        let ended = catch_unwind(AssertUnwindSafe(|| run(&call, context)));
        self.world.fates.borrow_mut().clear();
        match ended {
            Ok(ended) => Some(ended),
            Err(panic) if panic.is::<Killed>() => None,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// The path of an attachment's file (`sign` is empty), of its mark (`+`) or of its temporary file (`.`).
    fn path(&self, sign: &str, attachment: &Attachment) -> PathBuf {
        let name = attachment_store::name(attachment);
        self.folder.join("data").join(format!("{sign}{name}"))
    }

    fn file(&self, attachment: &Attachment) -> bool {
        self.path("", attachment).exists()
    }

    fn is_held(&self, key: &(String, Attachment)) -> bool {
        self.world.held.borrow().contains(key)
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Call { verb, network, container, interface, fates } => {
                let key = (NETWORKS[*network].to_owned(), attachment(*container, *interface));
                // A runtime adds an interface to only one network at a time.
                let taken = self
                    .world
                    .held
                    .borrow()
                    .iter()
                    .any(|(network, other)| *other == key.1 && *network != key.0);
                if !taken {
                    self.call(*verb, &key, fates);
                }
            }
            Step::Gc { network, live, fates } => self.gc(NETWORKS[*network], *live, fates),
            Step::Leave { remains, container, interface } => {
                let attachment = attachment(*container, *interface);
                let (sign, text) = match (remains, self.file(&attachment)) {
                    (Remains::Damaged, true) => ("", ""),
                    (Remains::Torn, _) => (".", "{"),
                    (Remains::Marked, false) => ("+", ""),
                    _ => return,
                };
                let _ = fs::write(self.path(sign, &attachment), text);
            }
        }
    }

    fn call(&mut self, verb: Verb, key: &(String, Attachment), fates: &[Fate]) {
        let (there, file) = (self.is_held(key), self.file(&key.1));
        if verb == Verb::Add {
            // If another network takes over an interrupted interface, it must be removed from that network first, so its ADD may fail.
            self.interrupted.retain(|(network, one)| *one != key.1 || *network == key.0);
        }
        let ended = self.run(verb, &key.0, &key.1, &json!({}), fates);
        match (verb, ended) {
            (Verb::Add, Some(Ok(_))) => {
                assert!(self.is_held(key) && self.file(&key.1), "ADD promised what is not there");
                self.promised.insert(key.clone());
                self.interrupted.remove(key);
            }
            (Verb::Add, None) if !there && !file => {
                self.interrupted.insert(key.clone());
            }
            (Verb::Add, Some(Err(error))) if fates.is_empty() && self.interrupted.contains(key) => {
                panic!("ADD cannot be repeated: {error:?}")
            }
            (Verb::Add, Some(Err(_))) if !there && !file => assert!(
                self.file(&key.1) || !self.is_held(key),
                "a failed ADD left what nobody knows of"
            ),
            (Verb::Del, ended) => {
                self.promised.remove(key);
                if let Some(Ok(_)) = ended {
                    assert!(
                        !self.is_held(key) && !self.file(&key.1),
                        "DEL said that nothing is left"
                    );
                }
            }
            (Verb::Check, _) => assert_eq!(
                (self.is_held(key), self.file(&key.1)),
                (there, file),
                "CHECK changed something"
            ),
            _ => {}
        }
    }

    fn gc(&mut self, network: &str, live: usize, fates: &[Fate]) {
        let containers: Vec<&str> = CONTAINERS
            .iter()
            .enumerate()
            .filter(|(bit, _)| live & (1 << bit) != 0)
            .map(|(_, container)| *container)
            .collect();
        let list: Value = containers
            .iter()
            .flat_map(|container| {
                INTERFACES.map(|interface| json!({"containerID": container, "ifname": interface}))
            })
            .collect();
        // A damaged file lacks the name of its network. So a runtime whose networks share a directory must list all containers as valid;
        // skip GC otherwise.
        let damaged = |attachment: &Attachment| {
            fs::read(self.path("", attachment)).is_ok_and(|text| text.is_empty())
        };
        let unclear: Vec<_> = self
            .world
            .held
            .borrow()
            .iter()
            .filter(|(other, one)| {
                other != network && damaged(one) && !containers.contains(&one.container.as_str())
            })
            .cloned()
            .collect();
        if !unclear.is_empty() {
            return;
        }
        let gone = |(of, one): &(String, Attachment)| {
            of == network && !containers.contains(&one.container.as_str())
        };
        let nobody = Attachment { container: String::new(), interface: String::new() };
        let ended = self.run(
            Verb::Gc,
            network,
            &nobody,
            &json!({"cni.dev/valid-attachments": list}),
            fates,
        );
        self.promised.retain(|key| !gone(key));
        if let Some(Ok(_)) = ended {
            assert!(
                !self.world.held.borrow().iter().any(gone),
                "GC left something: {:?}",
                self.world.held.borrow()
            );
        }
    }

    fn check(&self) {
        for key in self.world.held.borrow().iter() {
            assert!(self.file(&key.1), "nobody knows of {key:?}");
        }
        for key in &self.promised {
            assert!(self.is_held(key), "{key:?} is in use, and was removed");
        }
    }
}

#[test]
fn sequences_leave_nothing_without_a_file() {
    let count = std::env::var("FLANNEL_TEST_CNI_SEQUENCES")
        .map_or(SEQUENCES, |count| count.parse().unwrap());
    let workers = 4;
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                // Use memory, because this test checks logic and not the disk.
                let memory = Path::new("/dev/shm");
                let root = if memory.is_dir() {
                    tempfile::tempdir_in(memory)
                } else {
                    tempfile::tempdir()
                }
                .unwrap();
                fs::write(root.path().join("subnet.env"), crate::bed::SUBNET_ENV).unwrap();
                let config = Config {
                    cases: count / workers,
                    failure_persistence: None,
                    ..Config::default()
                };
                TestRunner::new(config)
                    .run(&steps(), |steps| {
                        let _ = fs::remove_dir_all(root.path().join("data"));
                        let mut sequence = Sequence {
                            folder: root.path(),
                            world: World::default(),
                            promised: BTreeSet::new(),
                            interrupted: BTreeSet::new(),
                        };
                        for step in &steps {
                            sequence.step(step);
                            sequence.check();
                        }
                        Ok(())
                    })
                    .unwrap();
            });
        }
    });
}
