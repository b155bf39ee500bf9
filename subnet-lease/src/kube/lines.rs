//! The lines of a watch.

use super::api::Answer;
use super::failure::Failure;
use super::trouble::Silence;
use http_body_util::BodyExt;
use std::time::Duration;

/// The longest line: etcd keeps no object of this size.
const LONGEST: usize = 8 << 20;

/// Reads an answer line by line.
pub(super) struct Lines {
    answer: Answer,
    buffer: Vec<u8>,
    /// How much of the buffer holds no end of line.
    searched: usize,
}

/// Result of reading a line of a watch.
pub(super) enum Line {
    /// A line.
    Text(String),
    /// Nothing within the time.
    Quiet,
    /// The answer has ended.
    End,
}

impl Lines {
    /// Creates a reader of the answer's body.
    pub(super) fn of(answer: Answer) -> Self {
        Self {
            answer,
            buffer: Vec::new(),
            searched: 0,
        }
    }

    /// The next line; waits for each part of it as long as `patience`.
    ///
    /// # Errors
    /// The connection broke, or a line has no end.
    ///
    /// # Cancel safety
    /// What was read stays in the buffer.
    pub(super) async fn next(&mut self, patience: Duration) -> Result<Line, Failure> {
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
                return Ok(Line::Text(String::from_utf8(line).unwrap_or_else(
                    |error| String::from_utf8_lossy(error.as_bytes()).into_owned(),
                )));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > LONGEST {
                return Err(Failure::too_large(
                    &self.answer.server,
                    &self.answer.what,
                    LONGEST,
                ));
            }
            match tokio::time::timeout(patience, self.answer.body.frame()).await {
                Err(_) => return Ok(Line::Quiet),
                Ok(None) => return Ok(Line::End),
                Ok(Some(Err(error))) => {
                    return Err(Failure::unreachable(
                        &self.answer.server,
                        &self.answer.what,
                        Silence::of(&error),
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

    /// The connection stack that the answer came by.
    pub(super) fn generation(&self) -> u64 {
        self.answer.generation
    }

    /// Returns the URL of the server that answers.
    pub(super) fn server(&self) -> &str {
        &self.answer.server
    }
}
