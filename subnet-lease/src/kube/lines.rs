//! Splits the response to a watch request into lines.

use super::api::Answer;
use super::error::NoResponseError;
use super::request_error::RequestError;
use http_body_util::BodyExt;
use std::time::Duration;

/// In bytes. etcd stores no object of 8 MiB.
const LONGEST: usize = 8 << 20;

pub(super) struct Lines {
    answer: Answer,
    buffer: Vec<u8>,
    /// Number of bytes at the beginning of the buffer that contain no line break.
    searched: usize,
}

pub(super) enum Line {
    Text(String),
    /// No data arrived within the time limit.
    Quiet,
    End,
}

impl Lines {
    pub(super) fn of(answer: Answer) -> Self {
        Self { answer, buffer: Vec::new(), searched: 0 }
    }

    /// Waits at most `patience` for each part of the line. Fails if the connection broke or the line is too long.
    ///
    /// # Cancel safety
    /// Data already received stays in the buffer.
    pub(super) async fn next(&mut self, patience: Duration) -> Result<Line, RequestError> {
        loop {
            if let Some(end) = self
                .buffer
                .iter()
                .skip(self.searched)
                .position(|byte| *byte == b'\n')
                .map(|at| at + self.searched)
            {
                let rest = self.buffer.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.truncate(end);
                self.searched = 0;
                if line.is_empty() {
                    continue;
                }
                return Ok(Line::Text(String::from_utf8(line).unwrap_or_else(|error| {
                    String::from_utf8_lossy(error.as_bytes()).into_owned()
                })));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > LONGEST {
                return Err(RequestError::too_large(
                    &self.answer.server,
                    &self.answer.what,
                    LONGEST,
                ));
            }
            match tokio::time::timeout(patience, self.answer.body.frame()).await {
                Err(_) => return Ok(Line::Quiet),
                Ok(None) => return Ok(Line::End),
                Ok(Some(Err(error))) => {
                    return Err(RequestError::unreachable(
                        &self.answer.server,
                        &self.answer.what,
                        &NoResponseError::of(&error),
                    ));
                }
                Ok(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }

    /// Serial number of the connection that delivers the response.
    pub(super) fn generation(&self) -> u64 {
        self.answer.generation
    }

    /// URL of the responding server.
    pub(super) fn server(&self) -> &str {
        &self.answer.server
    }
}
