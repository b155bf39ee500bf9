//! What our own ways of moving packets are to reach beside the kernel's vxlan. Both are measured in each round, and the ratio is taken round by
//! round: the speed of a machine that is shared changes between rounds.

use std::fmt::Write;

use lab::Cable;

/// The reference of all ratios.
const KERNEL: &str = "vxlan (kernel)";

#[derive(Clone, Copy)]
enum Of {
    /// The rate of one stream: the more, the better.
    Rate,
    /// Processor seconds a gigabyte: the fewer, the better.
    Processor,
}

impl Of {
    fn name(self) -> &'static str {
        match self {
            Of::Rate => "TCP 1",
            Of::Processor => "CPU s/GB",
        }
    }
}

/// A goal, and the limit that has to hold. Ratios to the kernel's vxlan.
struct Goal {
    carrier: &'static str,
    cable: Cable,
    of: Of,
    goal: f64,
    limit: f64,
}

const fn goal(carrier: &'static str, cable: Cable, of: Of, goal: f64, limit: f64) -> Goal {
    Goal {
        carrier,
        cable,
        of,
        goal,
        limit,
    }
}

const GOALS: [Goal; 8] = [
    goal("vxlan (userspace)", Cable::Wire, Of::Rate, 1.0, 0.75),
    goal(
        "vxlan (userspace to kernel)",
        Cable::Wire,
        Of::Rate,
        1.0,
        0.95,
    ),
    goal(
        "vxlan (kernel to userspace)",
        Cable::Wire,
        Of::Rate,
        0.95,
        0.8,
    ),
    goal("udp", Cable::Wire, Of::Rate, 1.0, 0.75),
    goal("wireguard (userspace)", Cable::Wire, Of::Rate, 0.45, 0.3),
    goal(
        "wireguard (userspace)",
        Cable::Wire,
        Of::Processor,
        2.8,
        3.6,
    ),
    goal("vxlan (userspace)", Cable::Veth, Of::Rate, 0.8, 0.6),
    goal("udp", Cable::Veth, Of::Rate, 0.8, 0.6),
];

/// Results of a carrier, one figure a round.
pub(crate) struct Series<'s> {
    pub name: &'s str,
    pub rate: &'s [f64],
    pub processor: &'s [f64],
}

impl Series<'_> {
    fn of(&self, of: Of) -> &[f64] {
        match of {
            Of::Rate => self.rate,
            Of::Processor => self.processor,
        }
    }
}

/// Appends the goals of a cable and how far they were reached, where the kernel's vxlan was measured, too.
pub(crate) fn table(out: &mut String, cable: Cable, all: &[Series<'_>]) {
    let find = |name: &str| all.iter().find(|series| series.name == name);
    let Some(kernel) = find(KERNEL) else { return };
    let mut rows = String::new();
    for Goal {
        carrier,
        of,
        goal,
        limit,
        ..
    } in GOALS.iter().filter(|goal| goal.cable == cable)
    {
        let Some(series) = find(carrier) else {
            continue;
        };
        let mut ratios: Vec<f64> = series
            .of(*of)
            .iter()
            .zip(kernel.of(*of))
            .map(|(ours, theirs)| ours / theirs)
            .collect();
        // From the worst to the best.
        ratios.sort_by(f64::total_cmp);
        if matches!(of, Of::Processor) {
            ratios.reverse();
        }
        let (Some(median), Some(worst), Some(best)) =
            (ratios.get(ratios.len() / 2), ratios.first(), ratios.last())
        else {
            continue;
        };
        let reaches = |mark: f64| {
            if matches!(of, Of::Rate) {
                *median >= mark
            } else {
                *median <= mark
            }
        };
        let reached = match (reaches(*goal), reaches(*limit)) {
            (true, _) => "the goal",
            (_, true) => "the gate",
            _ => "neither",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            rows,
            "| {carrier}: {} | {median:.2} | {worst:.2}-{best:.2} | {goal:.2} | {limit:.2} | {reached} |",
            of.name()
        );
    }
    if !rows.is_empty() {
        let _ = writeln!(
            out,
            "Beside kernel vxlan in the same round:\n\n| | median of all rounds | worst-best | goal | gate | reached |\n|---|---:|---:|---:|---:|---|\n{rows}"
        );
    }
}
