//! Encodes a task's histogram as a metric.

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use types::Durations;

/// A copy; the metric is in seconds.
#[derive(Debug)]
pub(super) struct Recorded(pub(super) Durations);

impl EncodeMetric for Recorded {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let buckets: Vec<(f64, u64)> = self.0.buckets().collect();
        encoder.encode_histogram::<NoLabelSet>(
            self.0.sum.as_secs_f64(),
            self.0.count(),
            &buckets,
            None,
        )
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}
