//! Table of benchmark results, with the project's goals and Go flannel's results.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

/// In the order of the measurements.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<[String; 5]>,
}

impl Table {
    /// A row with the median and the maximum, in milliseconds.
    pub(crate) fn add_times_row(&mut self, what: &str, times: &[Duration], goal: &str, go: &str) {
        let milliseconds = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        self.add_figures_row(what, milliseconds, "ms", goal, go);
    }

    /// A row with the median and the maximum.
    pub(crate) fn add_figures_row(
        &mut self,
        what: &str,
        mut figures: Vec<f64>,
        unit: &str,
        goal: &str,
        go: &str,
    ) {
        figures.sort_by(f64::total_cmp);
        let show = |figure: Option<&f64>| {
            figure.map_or_else(
                || "-".to_owned(),
                |figure| format!("{} {unit}", format_three_digits(*figure)).trim_end().to_owned(),
            )
        };
        let (median, worst) = (show(figures.get(figures.len() / 2)), show(figures.last()));
        eprintln!("  {what}: {median}, worst {worst}");
        self.rows.push([what.to_owned(), median, worst, goal.to_owned(), go.to_owned()]);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A line that describes the machine comes first.
    pub(crate) fn markdown(&self) -> String {
        let mut out = measurement_source_line();
        out.push_str(
            "| | median | worst | goal | Go flannel v0.20.2 |\n|---|---:|---:|---:|---:|\n",
        );
        for row in &self.rows {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "| {} |", row.join(" | "));
        }
        out
    }
}

/// The first line of a section, which names the command and the machine of the measurement.
pub(crate) fn measurement_source_line() -> String {
    format!("`make bench` measured these figures on {}.\n\n", machine_description())
}

/// Keeps three significant digits.
fn format_three_digits(figure: f64) -> String {
    match figure {
        figure if figure >= 100.0 || figure.fract() == 0.0 => format!("{figure:.0}"),
        figure if figure >= 10.0 => format!("{figure:.1}"),
        figure => format!("{figure:.2}"),
    }
}

fn machine_description() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("an unknown processor", |(_, name)| name);
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let (kernel, load) = (read("/proc/sys/kernel/osrelease"), read("/proc/loadavg"));
    let load = load.split_whitespace().next().unwrap_or("?").to_owned();
    format!(
        "{count} processors ({model}) with Linux {} and a load of {load} at the end. The hosts and etcd share the processors",
        kernel.trim()
    )
}

/// Replaces the text between the two comments that mark a section of docs/performance.md.
pub(crate) fn replace_performance_section(section: &str, text: &str) -> Result<()> {
    let marks = [
        format!("<!-- make bench, {section}: begin -->\n"),
        format!("<!-- make bench, {section}: end -->\n"),
    ];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/performance.md");
    let old =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let (head, rest) = old
        .split_once(&marks[0])
        .with_context(|| format!("{} has no line {}", path.display(), marks[0].trim()))?;
    let (_, tail) = rest
        .split_once(&marks[1])
        .with_context(|| format!("{} has no line {}", path.display(), marks[1].trim()))?;
    std::fs::write(&path, format!("{head}{}{text}{}{tail}", marks[0], marks[1]))
        .with_context(|| format!("writing {}", path.display()))
}

/// Writes docs/datapath.svg.
pub(crate) fn write_datapath_picture(svg: &str) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/datapath.svg");
    std::fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))
}
