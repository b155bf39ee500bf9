//! Goals of flannel-rs' datapaths: ratios to the kernel's vxlan and to an earlier build, and round-trip times during TCP streams. Both figures of a
//! ratio are of the same round, because the speed of a shared machine changes between rounds.

use std::fmt::Write;

use lab::Cable;

use super::load::median_figure;

/// The goals are ratios to its results.
const KERNEL: &str = "vxlan (kernel)";

#[derive(Clone, Copy)]
enum Of {
    /// Of one TCP stream. Higher is better.
    Rate,
    /// Seconds per transferred gigabyte. Lower is better.
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

/// With the limit that a datapath must reach; both are ratios to the kernel's vxlan.
struct Goal {
    carrier: &'static str,
    cable: Cable,
    of: Of,
    goal: f64,
    limit: f64,
}

const fn ratio_goal(carrier: &'static str, cable: Cable, of: Of, goal: f64, limit: f64) -> Goal {
    Goal { carrier, cable, of, goal, limit }
}

const GOALS: [Goal; 8] = [
    ratio_goal("vxlan (userspace)", Cable::Wire, Of::Rate, 1.0, 0.75),
    ratio_goal("vxlan (userspace to kernel)", Cable::Wire, Of::Rate, 1.0, 0.95),
    ratio_goal("vxlan (kernel to userspace)", Cable::Wire, Of::Rate, 0.95, 0.8),
    ratio_goal("udp", Cable::Wire, Of::Rate, 1.0, 0.75),
    ratio_goal("wireguard (userspace)", Cable::Wire, Of::Rate, 0.7, 0.5),
    ratio_goal("wireguard (userspace)", Cable::Wire, Of::Processor, 2.2, 2.8),
    ratio_goal("vxlan (userspace)", Cable::Veth, Of::Rate, 0.8, 0.6),
    ratio_goal("udp", Cable::Veth, Of::Rate, 0.8, 0.6),
];

/// Round-trip times during TCP streams: the median and the 99th percentile of each round, in microseconds.
#[derive(Clone, Default)]
pub(crate) struct Loaded {
    /// During one stream.
    pub one: Vec<(f64, f64)>,
    /// During four streams.
    pub four: Vec<(f64, f64)>,
    /// Between real-time programs during one TCP stream: only the packets' path, without waits for a processor.
    pub path: Vec<(f64, f64)>,
}

impl Loaded {
    fn label_and_round_trips(&self, load: Load) -> (&'static str, &[(f64, f64)]) {
        match load {
            Load::One => ("during one stream", &self.one),
            Load::Four => ("during four streams", &self.four),
            Load::Path => ("of the path alone", &self.path),
        }
    }
}

#[derive(Clone, Copy)]
enum Load {
    One,
    Four,
    Path,
}

/// Median round-trip time over a wire, in microseconds: the goal, and the limit that a datapath must not exceed.
const WAITS: [(&str, Load, f64, f64); 9] = [
    ("vxlan (userspace)", Load::One, 350.0, 500.0),
    ("vxlan (userspace)", Load::Four, 350.0, 500.0),
    ("vxlan (userspace)", Load::Path, 200.0, 300.0),
    ("udp", Load::One, 350.0, 500.0),
    ("udp", Load::Four, 350.0, 500.0),
    ("udp", Load::Path, 200.0, 300.0),
    ("wireguard (userspace)", Load::One, 500.0, 700.0),
    ("wireguard (userspace)", Load::Four, 350.0, 500.0),
    ("wireguard (userspace)", Load::Path, 200.0, 300.0),
];

/// One figure per round.
pub(crate) struct Series<'s> {
    pub name: &'s str,
    pub rate: &'s [f64],
    pub processor: &'s [f64],
    pub loaded: &'s Loaded,
}

/// The goal, only the limit, or neither. If `more` is true, higher figures are better.
fn reached_goal_or_gate(figure: f64, goal: f64, limit: f64, more: bool) -> &'static str {
    let reaches = |mark: f64| if more { figure >= mark } else { figure <= mark };
    match (reaches(goal), reaches(limit)) {
        (true, _) => "the goal",
        (_, true) => "the gate",
        _ => "neither",
    }
}

/// Suffix of the name of a carrier that runs an earlier build of flanneld.
pub(crate) const BEFORE: &str = ", before";

impl Series<'_> {
    fn figures_of_kind(&self, of: Of) -> &[f64] {
        match of {
            Of::Rate => self.rate,
            Of::Processor => self.processor,
        }
    }
}

/// Whether the datapaths reached the goals for a virtual cable, if the run also measured the kernel's vxlan.
pub(crate) fn append_kernel_comparison(out: &mut String, cable: Cable, all: &[Series<'_>]) {
    let find = |name: &str| all.iter().find(|series| series.name == name);
    let Some(kernel) = find(KERNEL) else { return };
    let mut rows = String::new();
    for Goal { carrier, of, goal, limit, .. } in GOALS.iter().filter(|goal| goal.cable == cable) {
        let Some(series) = find(carrier) else {
            continue;
        };
        let mut ratios: Vec<f64> = series
            .figures_of_kind(*of)
            .iter()
            .zip(kernel.figures_of_kind(*of))
            .map(|(ours, theirs)| ours / theirs)
            .collect();
        // Sort from the worst to the best.
        ratios.sort_by(f64::total_cmp);
        if matches!(of, Of::Processor) {
            ratios.reverse();
        }
        let (Some(median), Some(worst), Some(best)) =
            (ratios.get(ratios.len() / 2), ratios.first(), ratios.last())
        else {
            continue;
        };
        let reached = reached_goal_or_gate(*median, *goal, *limit, matches!(of, Of::Rate));
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
            "Relative to kernel vxlan in the same round:\n\n| | median of all rounds | worst-best | goal | gate | reached |\n|---|---:|---:|---:|---:|---|\n{rows}"
        );
    }
}

/// Round trips during TCP streams over a wire, if the run measured them.
pub(crate) fn append_loaded_round_trips(out: &mut String, cable: Cable, all: &[Series<'_>]) {
    let find = |name: &str| all.iter().find(|series| series.name == name);
    let medians = |rounds: &[(f64, f64)]| {
        let (p50, p99): (Vec<f64>, Vec<f64>) = rounds.iter().copied().unzip();
        (median_figure(&p50), median_figure(&p99))
    };
    let mut rows = String::new();
    for (name, load, goal, limit) in WAITS {
        let Some(series) = find(name).filter(|_| matches!(cable, Cable::Wire)) else {
            continue;
        };
        let (what, rounds) = series.loaded.label_and_round_trips(load);
        if rounds.is_empty() {
            continue;
        }
        let (p50, p99) = medians(rounds);
        let _ = writeln!(
            rows,
            "| {name}: {what}, p50 | {p50:.0} | {goal:.0} | {limit:.0} | {} |",
            reached_goal_or_gate(p50, goal, limit, false)
        );
        if let (Load::Path, Some(kernel)) = (load, find(KERNEL)) {
            let (_, limit) = medians(&kernel.loaded.path);
            let _ = writeln!(
                rows,
                "| {name}: {what}, p99 | {p99:.0} | - | {limit:.0} (kernel vxlan's) | {} |",
                reached_goal_or_gate(p99, 0.0, limit, false)
            );
        }
    }
    if !rows.is_empty() {
        let _ = writeln!(
            out,
            "Round trips in microseconds, medians of all rounds:\n\n| | | goal | gate | reached |\n|---|---:|---:|---:|---|\n{rows}"
        );
    }
}

/// Ratios of this build to an earlier one for each round, if the run measured both.
pub(crate) fn append_build_comparison(out: &mut String, all: &[Series<'_>]) {
    let mut rows = String::new();
    for former in all {
        let Some(series) = former
            .name
            .strip_suffix(BEFORE)
            .and_then(|name| all.iter().find(|series| series.name == name))
        else {
            continue;
        };
        // `marks` are the goal and the limit.
        let column = |ours: &[f64], theirs: &[f64], marks: Option<(f64, f64)>| {
            let mut ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
            ratios.sort_by(f64::total_cmp);
            let (Some(least), Some(most)) = (ratios.first(), ratios.last()) else {
                return "-".to_owned();
            };
            let ratio = median_figure(&ratios);
            let reached = marks.map_or(String::new(), |(goal, limit)| {
                format!(": {}", reached_goal_or_gate(ratio, goal, limit, goal > limit))
            });
            format!("{ratio:.2} ({least:.2}-{most:.2}){reached}")
        };
        let halves = |series: &Series<'_>| -> (Vec<f64>, Vec<f64>) {
            series.loaded.one.iter().copied().unzip()
        };
        let ((p50, p99), (former_p50, former_p99)) = (halves(series), halves(former));
        let _ = writeln!(
            rows,
            "| {} | {} | {} | {} | {} |",
            series.name,
            column(series.rate, former.rate, Some((0.95, 0.85))),
            column(series.processor, former.processor, Some((1.1, 1.25))),
            column(&p50, &former_p50, None),
            column(&p99, &former_p99, Some((0.5, 1.0))),
        );
    }
    if !rows.is_empty() {
        let _ = writeln!(
            out,
            "Relative to the build before in the same round:\n\n| | TCP 1 (worst-best) | CPU s/GB | RTT under TCP p50 | p99 |\n|---|---:|---:|---:|---:|\n{rows}"
        );
    }
}
