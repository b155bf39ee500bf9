//! One node: its machine, its process (a protocol coroutine), and the network between it and the store.

use super::store::{Store, no_answer};
use rand::Rng;
use rand::rngs::StdRng;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::manager::{Claim, HostEvidence, HostQueries, LeaseLostError};
use subnet_lease::protocol::acquire::acquire;
use subnet_lease::protocol::coroutine::{Coroutine, Step};
use subnet_lease::protocol::hold::hold;
use subnet_lease::protocol::registry::{Answer, Request};
use subnet_lease::protocol::tenure::Tenure;
use subnet_lease::{LeaseAttrs, NetworkConfig, NodeId};
use types::{Dual, Problem, Subnets};

/// A host that reaches every address over its underlay.
#[derive(Debug)]
pub(crate) struct OnUnderlay;

impl HostQueries for OnUnderlay {
    fn is_own(&self, _: &LeaseAttrs) -> bool {
        false
    }

    fn via_underlay(&self, _: IpAddr) -> bool {
        true
    }
}

/// State of flanneld's process on the machine.
pub(crate) enum Process {
    Off { restart: Duration },
    Acquiring(Coroutine<Result<Tenure, Problem>>),
    Holding(Coroutine<LeaseLostError>, String),
}

enum Travel {
    /// On its way to the store.
    Out(Request),
    /// On its way back, after the store has carried out the request.
    Back(Result<Answer, Problem>),
}

pub(crate) struct Node {
    pub name: usize,
    pub id: String,
    /// The node publishes the first, and its machine has the second.
    pub address: Ipv4Addr,
    pub machine: Ipv4Addr,
    pub named: bool,
    /// Until then, the machine is off.
    pub down: Duration,
    /// The link of the address proves that no other machine has it.
    pub alone: bool,
    pub process: Process,
    pub instance: u32,
    /// In subnet.env.
    pub previous: Option<Subnets>,
    travel: Option<(Duration, Travel)>,
    pub wait: Option<Duration>,
    pub stopped: Duration,
    pub cut: Duration,
    /// Number of the store's restores, and of the events that the node has seen since the last one.
    pub seen: (u32, usize),
    pub refusals: u32,
    pub exit_report: String,
}

impl Node {
    pub(crate) fn new(
        name: usize,
        id: String,
        address: Ipv4Addr,
        named: bool,
        start: Duration,
    ) -> Self {
        Self {
            name,
            id,
            address,
            machine: address,
            named,
            down: Duration::ZERO,
            alone: false,
            process: Process::Off { restart: start },
            instance: 0,
            previous: None,
            travel: None,
            wait: None,
            stopped: Duration::ZERO,
            cut: Duration::ZERO,
            seen: (0, 0),
            refusals: 0,
            exit_report: String::new(),
        }
    }

    fn claim(&self) -> Claim {
        let named = self.named;
        Claim {
            node: NodeId {
                id: self.id.as_str().into(),
                name: format!("n{}", self.name).into(),
                instance: format!("i{}-{}", self.name, self.instance),
                ..NodeId::default()
            },
            public: Dual::V4(self.address),
            host: HostEvidence {
                previous: self.previous,
                named,
                store_via_underlay: named,
                alone_at_address: self.alone,
                queries: named.then(|| Arc::new(OnUnderlay) as Arc<dyn HostQueries>),
                ..HostEvidence::default()
            },
        }
    }

    fn attrs(&self) -> LeaseAttrs {
        LeaseAttrs {
            public_ip: Some(self.address),
            backend: "host-gw".into(),
            ..LeaseAttrs::default()
        }
    }

    /// What the node believes it holds.
    pub(crate) fn held(&self) -> Option<Subnets> {
        match &self.process {
            Process::Holding(coroutine, _) => {
                coroutine.with_held(|held| held.lease.as_ref().map(|lease| lease.subnets))
            }
            _ => None,
        }
    }

    pub(crate) fn healthy(&self, now: Duration) -> bool {
        self.stopped <= now && self.cut <= now
    }

    pub(crate) fn crash(&mut self, restart: Duration) {
        self.process = Process::Off { restart };
        // A request that was already sent may still arrive.
        if let Some((_, Travel::Back(_))) = self.travel {
            self.travel = None;
        }
    }

    /// Time of the next event on this node.
    pub(crate) fn next(&self, store: &Store) -> Option<Duration> {
        let mut times = Vec::new();
        if let Some((at, _)) = &self.travel {
            times.push(*at);
        }
        match &self.process {
            Process::Off { restart } => times.push((*restart).max(self.stopped)),
            _ => {
                let awake = self.stopped;
                if self.travel.is_none()
                    && let Some(wait) = self.wait
                {
                    times.push(wait.max(awake));
                }
                if self.unseen(store) {
                    times.push(
                        self.stopped.max(self.cut).max(
                            store.events.get(self.seen.1).map_or(Duration::ZERO, |event| {
                                event.at + Duration::from_millis(40)
                            }),
                        ),
                    );
                }
            }
        }
        times.into_iter().min()
    }

    fn unseen(&self, store: &Store) -> bool {
        matches!(self.process, Process::Holding(..))
            && (self.seen.0 != store.history || self.seen.1 < store.events.len())
    }

    /// Executes the node's events that are due. The result is a line for the printed history.
    pub(crate) fn act(
        &mut self,
        now: Duration,
        store: &mut Store,
        config: &NetworkConfig,
        rng: &mut StdRng,
        talk: bool,
    ) -> Option<String> {
        let mut line = None;
        if let Some((at, travel)) = self.travel.take() {
            if at > now {
                self.travel = Some((at, travel));
            } else {
                match travel {
                    Travel::Out(request) => {
                        let reset = rng.random_bool(0.02) && self.healthy(now);
                        let answer = if reset || self.cut > now {
                            Err(no_answer())
                        } else {
                            store.carry_out(&request, now)
                        };
                        if talk
                            && !matches!(
                                request,
                                Request::KeepAlive { .. }
                                    | Request::List
                                    | Request::Grant
                                    | Request::LastSeen { .. }
                            )
                        {
                            println!(
                                "{:>9.3}   n{} {request:?} -> {answer:?}",
                                now.as_secs_f64(),
                                self.name
                            );
                        }
                        let lost = rng.random_bool(0.02);
                        let answer = if lost { Err(no_answer()) } else { answer };
                        if !matches!(self.process, Process::Off { .. }) {
                            self.travel = Some((
                                now + Duration::from_millis(rng.random_range(1..40)),
                                Travel::Back(answer),
                            ));
                        }
                    }
                    Travel::Back(answer) if self.stopped > now => {
                        self.travel = Some((self.stopped, Travel::Back(answer)));
                    }
                    Travel::Back(answer) => {
                        match &mut self.process {
                            Process::Acquiring(coroutine) => coroutine.answer(answer),
                            Process::Holding(coroutine, _) => coroutine.answer(answer),
                            Process::Off { .. } => {}
                        }
                        line = self.go_on(now, store, config, rng);
                    }
                }
            }
            return line;
        }
        if self.stopped > now {
            return None;
        }
        if let Process::Off { restart } = self.process {
            if restart > now {
                return None;
            }
            self.instance += 1;
            let (claim, config2, attrs) = (self.claim(), config.clone(), self.attrs());
            self.process =
                Process::Acquiring(Coroutine::new(move |io| acquire(io, claim, config2, attrs)));
            return self.go_on(now, store, config, rng);
        }
        self.deliver(now, store);
        self.go_on(now, store, config, rng)
    }

    /// Passes the events of the watch to the node's coroutine.
    fn deliver(&mut self, now: Duration, store: &Store) {
        let Process::Holding(coroutine, key) = &mut self.process else {
            return;
        };
        if self.cut > now {
            return;
        }
        if self.seen.0 != store.history {
            self.seen = (store.history, store.events.len());
            coroutine.notify(subnet_lease::protocol::registry::Notice::Discontinuity);
            return;
        }
        for event in store.events.iter().skip(self.seen.1) {
            if event.key == *key {
                coroutine.notify(event.notice.clone());
            }
        }
        self.seen.1 = store.events.len();
    }

    fn go_on(
        &mut self,
        now: Duration,
        store: &mut Store,
        config: &NetworkConfig,
        rng: &mut StdRng,
    ) -> Option<String> {
        {
            let ended = match &mut self.process {
                Process::Off { .. } => return None,
                Process::Acquiring(coroutine) => match coroutine.step(now) {
                    Step::Done(Ok(tenure)) => Ok(tenure),
                    Step::Done(Err(why)) => Err((why.to_string(), 1)),
                    Step::Ask(request) => return self.send(request, now, rng),
                    Step::Wait(until) => {
                        self.wait = until;
                        return None;
                    }
                },
                Process::Holding(coroutine, _) => match coroutine.step(now) {
                    Step::Done(LeaseLostError::Taken(why) | LeaseLostError::Moved(why)) => {
                        Err((why.text, 5))
                    }
                    Step::Done(LeaseLostError::Displaced(why)) => Err((why.text, 1)),
                    Step::Ask(request) => return self.send(request, now, rng),
                    Step::Wait(until) => {
                        self.wait = until;
                        return None;
                    }
                },
            };
            match ended {
                Ok(tenure) => {
                    self.previous = Some(tenure.subnets);
                    let line = format!("n{} holds {}", self.name, tenure.subnets);
                    // The watch of the node's key begins after its last write. Later events are delivered.
                    let after = store
                        .events
                        .iter()
                        .position(|event| event.revision > tenure.modified)
                        .unwrap_or(store.events.len());
                    self.seen = (store.history, after);
                    let (claim, used, key) = (self.claim(), config.clone(), tenure.key.clone());
                    let config = used.clone();
                    self.process = Process::Holding(
                        Coroutine::new(move |io| hold(io, claim, config, tenure)),
                        key,
                    );
                    let _ = self.go_on(now, store, &used, rng);
                    Some(line)
                }
                Err((text, code)) => {
                    self.refusals += 1;
                    self.process = Process::Off {
                        restart: now + Duration::from_millis(rng.random_range(1_000..10_000)),
                    };
                    self.travel = None;
                    let line = format!("n{} exits {code}: {text}", self.name);
                    self.exit_report = text;
                    Some(line)
                }
            }
        }
    }

    fn send(&mut self, request: Request, now: Duration, rng: &mut StdRng) -> Option<String> {
        let delay = if self.cut > now {
            Duration::from_secs(5)
        } else {
            Duration::from_millis(rng.random_range(1..40))
        };
        self.travel = Some((now + delay, Travel::Out(request)));
        None
    }
}
