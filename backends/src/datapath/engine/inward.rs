//! From the peers to the TUN device: receive what waits, judge each packet, merge, write.

use super::complaints::Complaints;
use super::wake::Wake;
use super::{Shape, readable};
use crate::datapath::counters::{Counters, add};
use crate::datapath::ecn;
use crate::datapath::merge::{Merger, SEGMENTS};
use crate::datapath::packet::{Header, set_ecn};
use crate::datapath::socket::{Receipt, Receiver, Socket};
use crate::datapath::table::Table;
use crate::datapath::tun::Tun;
use crate::datapath::verdict::{Checks, Reason, inbound};
use arc_swap::ArcSwap;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

/// Receipts a call while they hold many datagrams each: more would not fit the processor's cache.
const GATHERED: usize = 8;
/// From this average on, in bytes, receipts count as holding many datagrams.
const LONG: usize = 8192;

/// The work of one thread.
pub struct Inward {
    pub shape: Arc<Shape>,
    pub tun: Arc<Tun>,
    pub socket: Arc<Socket>,
    pub table: Arc<ArcSwap<Table>>,
    pub counters: Arc<Counters>,
    pub wake: Arc<Wake>,
}

impl Inward {
    /// Works until the wake.
    pub fn run(self) {
        let features = self.shape.features;
        let mut receiver = Receiver::new(features.batch);
        let mut most = features.batch;
        let offload = self.tun.offload();
        let mut merger = Merger::new(offload.tcp, offload.udp);
        let mut complaints = Complaints::default();
        let mut table = arc_swap::Cache::new(&*self.table);
        while !self.wake.called() {
            let count = match receiver.receive(&self.socket, most) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !readable(&*self.socket, &self.wake) {
                        return;
                    }
                    continue;
                }
                // What ICMP tells of a send, or a signal: the next call is another.
                Err(_) => continue,
            };
            add(&self.counters.received.batches, 1);
            let table: &Table = table.load();
            merger.clear();
            let mut bytes = 0;
            for index in 0..count {
                if let Some(receipt) = receiver.receipt(index) {
                    bytes += receipt.at.len();
                    self.receipt(&receipt, receiver.buffer(), table, &mut merger, &mut complaints);
                }
            }
            // Small packets, or a kernel that gathers nothing: more receipts make up for it.
            most = if bytes / count.max(1) >= LONG { GATHERED.min(features.batch) } else { features.batch };
            self.write(receiver.buffer(), &mut merger, &mut complaints);
        }
    }

    /// Judges all datagrams of a receipt.
    fn receipt(&self, receipt: &Receipt, buffer: &mut [u8], table: &Table, merger: &mut Merger, complaints: &mut Complaints) {
        let datagrams = receipt.at.len().div_ceil(receipt.segment.max(1)).max(1);
        if receipt.truncated {
            return self.dropped(Reason::Truncated, receipt.from, datagrams, complaints, &[]);
        }
        // A stranger's datagrams are not even looked at.
        if table.checks != Checks::Off && !table.knows(receipt.from) {
            return self.dropped(Reason::UnknownPeer, receipt.from, datagrams, complaints, &[]);
        }
        let mut start = receipt.at.start;
        loop {
            let end = receipt.at.end.min(start + receipt.segment.max(1));
            match self.judge(start..end, receipt, buffer, table) {
                Ok((at, header)) => merger.offer(buffer, at, &header),
                Err(reason) => self.dropped(reason, receipt.from, 1, complaints, buffer.get(start..end).unwrap_or_default()),
            }
            start = end;
            if start >= receipt.at.end {
                return;
            }
        }
    }

    /// Where the packet of a datagram lies, if it is let in.
    #[inline]
    fn judge(&self, at: Range<usize>, receipt: &Receipt, buffer: &mut [u8], table: &Table) -> Result<(Range<usize>, Header), Reason> {
        let datagram = buffer.get_mut(at.clone()).ok_or(Reason::Short)?;
        let inner = self.shape.framing.strip(datagram)?;
        let packet = datagram.get_mut(inner.clone()).ok_or(Reason::Short)?;
        let header = Header::parse(packet)?;
        inbound(&header, receipt.from, table)?;
        let mark = ecn::decapsulate(header.tos, receipt.ecn)?;
        if mark != header.tos & 3 {
            set_ecn(packet, mark);
        }
        Ok((at.start + inner.start..at.start + inner.end, header))
    }

    /// Writes what was merged.
    fn write(&self, buffer: &mut [u8], merger: &mut Merger, complaints: &mut Complaints) {
        let vnet = self.tun.offload().vnet;
        let (mut packets, mut bytes, mut units) = (0, 0, 0);
        merger.arrange();
        for turn in 0..merger.groups().len() {
            let index = merger.turn(turn);
            let head = merger.finish(index, buffer).bytes();
            let Some(group) = merger.groups().get(index) else { break };
            let mut parts = [IoSlice::new(&[]); SEGMENTS + 2];
            let mut used = 0;
            let mut total = 0;
            let front = if vnet { Some(head.as_slice()) } else { None };
            let ranges = std::iter::once(&group.first).chain(&group.rest);
            let slices = ranges.filter_map(|range| buffer.get(range.clone()));
            for (part, slice) in parts.iter_mut().zip(front.into_iter().chain(slices)) {
                *part = IoSlice::new(slice);
                used += 1;
                total += slice.len();
            }
            let count = group.count();
            match self.tun.write(parts.get(..used).unwrap_or_default()) {
                Ok(_) => {
                    units += 1;
                    packets += count;
                    bytes += total - front.map_or(0, <[u8]>::len);
                }
                Err(error) => {
                    self.counters.received.dropped_many(Reason::WriteFailed, count);
                    if let Some(times) = complaints.note("write", count) {
                        tracing::warn!("{}: cannot write a packet: {error} ({times} packets)", self.shape.device);
                    }
                    if count > 1 && error.raw_os_error() == Some(libc::EINVAL) {
                        tracing::warn!("{}: the kernel refuses merged packets: they are written one by one from now on", self.shape.device);
                        *merger = Merger::new(false, false);
                        break;
                    }
                }
            }
        }
        add(&self.counters.received.packets, packets);
        add(&self.counters.received.bytes, bytes);
        add(&self.counters.received.units, units);
    }

    /// Counts packets that are dropped, and tells of them. `datagram` is what was looked into.
    #[cold]
    fn dropped(&self, reason: Reason, from: IpAddr, times: usize, complaints: &mut Complaints, datagram: &[u8]) {
        self.counters.received.dropped_many(reason, times);
        let Some(times) = complaints.note(reason.as_str(), times) else { return };
        let inner = self.shape.framing.strip(datagram).ok().and_then(|at| Header::parse(datagram.get(at)?).ok());
        let inner = inner.map_or(String::new(), |header| format!(", {} to {} inside", header.source, header.destination));
        let (device, hint) = (self.shape.device, reason.hint());
        tracing::warn!("{device}: dropped a packet from {from}{inner}: {}: {hint} ({times} since the last such line)", reason.as_str());
    }
}
