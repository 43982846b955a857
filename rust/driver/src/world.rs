//! From a specification to machines: fabric, endpoints, connections, program, memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;

use metaroce_engine::pattern::{Expect, Fill, Pattern};
use metaroce_engine::{Dtype, Engine, Memory, Op, Program};
use metaroce_fabric::{Balance, Demand, Fabric, Target};
use metaroce_proto::{Access, Endpoint, TransportConfig};
use metaroce_wire::units::PS_PER_S;
use metaroce_wire::{Bytes, HostId, PlaneId, Rate, Time, lengths};

use crate::event::LINK_BITS;
use crate::execute::{opcode, place_of};
use crate::networks::{Connection, Connections, check_hosts, check_islands, environments, pairs};
use crate::offload::Devices;
use crate::packets::Packets;
use crate::queue::{EventQueue, MAX_BUCKET_BITS, MAX_SHIFT};
use crate::record::Recorder;
use crate::sim::{Progress, Simulation, Verify};
use crate::spec::{Data, DriverError, FaultTarget, OnError, Spec};
use crate::telemetry::Sampler;
use crate::upcoming::Upcoming;
use crate::windows::{MAX_WIDTH, Schedule, Windows};

/// State of paths, bytes, that is worth giving back.
const MUCH: usize = 64 << 20;

/// Memory of runs with payload that are over: as many as there ever were at once. No effect on results.
static KEPT: Mutex<Vec<Memory>> = Mutex::new(Vec::new());

/// Keeps the memory of a run that is over for the next one of the process.
pub(crate) fn keep(mut memory: Memory) {
    memory.release();
    if let Ok(mut kept) = KEPT.lock() {
        kept.push(memory);
        kept.sort_by_key(Memory::capacity);
    }
}

/// The smallest that is enough, or the largest: it goes back for a larger one.
fn kept(bytes: usize) -> Option<Memory> {
    let mut kept = KEPT.lock().ok()?;
    let at = kept.partition_point(|memory| memory.capacity() < bytes).min(kept.len().checked_sub(1)?);
    Some(kept.remove(at))
}

/// Builds a run that has not started.
pub(crate) fn build(spec: &Spec, mut data: Data) -> Result<Simulation, DriverError> {
    let refused = |e: &dyn std::fmt::Display| DriverError::Config(e.to_string());
    let fabric = spec.fabric.lower(spec.seed, spec.loss, longest_packet(spec))?;
    let mut fabric = Fabric::new(&fabric).map_err(|e| refused(&e))?;
    let program = Program::new(std::mem::take(&mut data.program), spec.memory_bytes).map_err(|e| refused(&e))?;
    let program = Arc::new(program);
    check(spec, &data, &program)?;
    let devices = Devices::new(spec, &program)?;
    let pairs = pairs(&program);
    check_islands(spec, &fabric, &pairs)?;
    if spec.fabric.balance == Balance::Pinned {
        fabric.pin(&demands(spec, &program));
    }
    let hosts = spec.fabric.hosts as usize;
    let planes = spec.fabric.planes as usize;
    let routes = fabric.routes();
    let mut endpoints = Endpoint::of_hosts(&spec.transport, environments(spec, &fabric));
    check_operations(spec, &program, &endpoints)?;
    register(spec, &data, &mut endpoints)?;
    let connections = connect(spec, &pairs, &mut endpoints);
    deny(spec, &data, &connections, &mut endpoints)?;
    let queue = queue(spec, &fabric);
    fabric.look_ahead(matches!(queue, Schedule::Strict(_)));
    Ok(Simulation {
        queue,
        packets: Packets::default(),
        ports: vec![0; hosts],
        window: fabric.least_delay().0.max(1),
        timer_at: vec![Time::NEVER; hosts],
        faults: spec.faults.iter().map(|f| (Time(f.at_ps), target(f.target, f.id), f.up)).collect(),
        on_error: spec.on_error,
        hosts_of_ranks: spec.hosts_of_ranks.clone(),
        upcoming: Upcoming::default(),
        far_state: far_state(&connections, planes * routes as usize, &fabric),
        limit: spec.time_limit_ps.map_or(Time::NEVER, Time),
        pause: Time::ZERO,
        sampler: Sampler::new(spec, &mut endpoints)?,
        progress: Progress::new(spec.warmup, spec.iterations),
        verify: verify(spec, data)?,
        verified: None,
        part: None,
        unsent: unsent(spec, &program, &connections, planes * routes as usize),
        recorder: recorder(spec, &program),
        engine: Engine::new(program),
        devices,
        rank_of_host: spec.rank_of_host(),
        other_hosts: spec.other_hosts(),
        connections,
        endpoints,
        explicit: fabric.is_explicit(),
        fabric,
    })
}

/// The same run once more, not started either and without endpoints, to be a part of it.
pub(crate) fn twin(spec: &Spec, of: &Simulation) -> Simulation {
    Simulation {
        queue: queue(spec, &of.fabric),
        packets: Packets::default(),
        fabric: of.fabric.clone(),
        endpoints: Vec::new(),
        engine: Engine::new(of.engine.program().clone()),
        devices: Devices::default(),
        verify: None,
        verified: None,
        recorder: recorder(spec, of.engine.program()),
        sampler: None,
        progress: Progress::new(spec.warmup, spec.iterations),
        connections: of.connections.clone(),
        hosts_of_ranks: of.hosts_of_ranks.clone(),
        rank_of_host: of.rank_of_host.clone(),
        other_hosts: of.other_hosts.clone(),
        ports: of.ports.clone(),
        explicit: of.explicit,
        timer_at: of.timer_at.clone(),
        faults: of.faults.clone(),
        on_error: of.on_error,
        limit: of.limit,
        pause: of.pause,
        window: of.window,
        far_state: of.far_state,
        upcoming: Upcoming::default(),
        unsent: Vec::new(),
        part: None,
    }
}

fn recorder(spec: &Spec, program: &Program) -> Recorder {
    let entries = if spec.record_wqes { program.len() } else { 0 };
    Recorder::new(entries, spec.fabric.planes as usize, spec.record_bin_ps)
}

/// What a wheel spans, ps: delays of links and full queues. What is due later waits in a heap.
const WHEEL_PS: u64 = 1 << 23;

/// Entries that each connection sends, where connections give their paths back when these are complete: where the paths
/// of all would take much, in the one iteration of a run of which nobody asks for their state. Answers to requests
/// are no entries, so there are to be none.
fn unsent(spec: &Spec, program: &Program, connections: &Connections, paths: usize) -> Vec<Vec<u32>> {
    let ends: usize = connections.iter().map(Vec::len).sum();
    let once = spec.iterations == 1 && spec.warmup == 0 && spec.record_paths_ps.is_none();
    let answered = |op| matches!(op, Op::Read | Op::CompareSwap | Op::FetchAdd | Op::Flush);
    if !once || 128 * ends * paths <= MUCH || program.ops().any(answered) {
        return Vec::new();
    }
    let of_rank = |(rank, of_rank): (usize, &Vec<Connection>)| {
        let mut entries = vec![0; of_rank.len()];
        for (_, peer) in program.talks(rank).filter(|&(op, _)| opcode(op).is_some()) {
            entries[place_of(of_rank, peer)] += 1;
        }
        entries
    };
    connections.iter().enumerate().map(of_rank).collect()
}

/// Whether paths (two lines at most, both ends) and routes together exceed half of a usual second-level cache. Measured: asking
/// for what packets lead to costs a tenth more instructions; at 320 KiB it brings less than that, at 640 KiB more.
fn far_state(connections: &Connections, paths: usize, fabric: &Fabric) -> bool {
    let connections: usize = connections.iter().map(Vec::len).sum();
    128 * connections / 2 * paths + fabric.route_bytes() > 512 << 10
}

fn target(kind: FaultTarget, id: u32) -> Target {
    match kind {
        FaultTarget::Link => Target::Link(id),
        FaultTarget::Switch => Target::Switch(id),
        FaultTarget::Plane => Target::Plane(id),
    }
}

/// Events a second of a fabric at full speed: some eight a data packet, hops of its own and of half an acknowledgement.
pub(crate) fn events_per_s(spec: &Spec, fabric: &Fabric) -> u128 {
    let rate: u128 =
        (0..spec.fabric.hosts).flat_map(|host| fabric.ports_of(HostId(host))).map(|r| u128::from(r.0)).sum();
    8 * rate / u128::from(8 * full_packet(spec)).max(1)
}

/// A wheel for a fabric at full speed: about eight events a bucket, and room for a few microseconds.
fn queue(spec: &Spec, fabric: &Fabric) -> Schedule {
    if goes_by_node(spec, fabric) {
        let nodes = spec.fabric.hosts as usize + spec.fabric.switches.plane.len();
        return Schedule::ByNode(Windows::new(nodes, fabric.least_delay()));
    }
    let width = (8 * u128::from(PS_PER_S) / events_per_s(spec, fabric).max(1)).max(1);
    let shift = width.ilog2().clamp(WHEEL_PS.ilog2() - MAX_BUCKET_BITS, MAX_SHIFT);
    Schedule::Strict(EventQueue::new(shift, (WHEEL_PS.ilog2() - shift).clamp(12, MAX_BUCKET_BITS)))
}

/// Whether nodes may be looked at one after the other in windows of the least delay of a link: nothing happens, is
/// looked at or is shared at more than one of them, and packets of one link never arrive together.
fn goes_by_node(spec: &Spec, fabric: &Fabric) -> bool {
    let once = (spec.iterations, spec.warmup) == (1, 0) && spec.inject.is_none();
    let apart = spec.record_paths_ps.is_none() && spec.faults.is_empty() && !spec.fabric.lossless;
    // The two hosts of a rank act on each other at once.
    let apart = apart && spec.scale_out.is_none();
    let in_order = !spec.fabric.control_priority || fabric.is_explicit();
    once && apart && in_order && (Time(2)..=MAX_WIDTH).contains(&fabric.least_delay())
}

fn check(spec: &Spec, data: &Data, program: &Program) -> Result<(), DriverError> {
    let ranks = spec.hosts_of_ranks.len();
    check_hosts(spec, program.ranks())?;
    if spec.iterations == 0 {
        return Err(DriverError::config("iterations", 0, "at least 1"));
    }
    let cables = spec.fabric.links.a.len();
    if cables > 1 << (LINK_BITS - 1) {
        let most = format!("at most {}: events are told apart by their links", 1u32 << (LINK_BITS - 1));
        return Err(DriverError::config("fabric.links", format!("{cables} rows"), most));
    }
    if spec.on_error == OnError::Continue && (spec.iterations, spec.warmup) != (1, 0) {
        return Err(DriverError::config("on_error", "continue", "stop, with more than one iteration"));
    }
    spec.transport.check().map_err(|e| DriverError::Config(e.to_string()))?;
    check_denied(spec)?;
    if spec.record_bin_ps == Some(0) {
        return Err(DriverError::config("record_bin_ps", 0, "at least 1"));
    }
    let needed = u64::from(full_packet(spec));
    if let Some(i) = spec.fabric.links.queue_bytes.iter().position(|&bytes| bytes < needed) {
        let (field, value) = (format!("fabric.links.queue_bytes[{i}]"), spec.fabric.links.queue_bytes[i]);
        return Err(DriverError::config(
            &field,
            value,
            format!("at least one full packet, {needed} bytes on the wire"),
        ));
    }
    let counts = [spec.fabric.links.a.len(), spec.fabric.switches.plane.len(), spec.fabric.planes as usize];
    for (i, fault) in spec.faults.iter().enumerate() {
        let count = counts[fault.target as usize];
        if fault.id as usize >= count {
            return Err(DriverError::config(&format!("faults[{i}].id"), fault.id, format!("below {count}")));
        }
    }
    check_payload(spec, data, ranks)
}

/// A transport needs a plane, and denies planes that there are.
fn check_denied(spec: &Spec) -> Result<(), DriverError> {
    let TransportConfig::MetaRoce(config) = &spec.transport else { return Ok(()) };
    let all = (1u32 << spec.fabric.planes) - 1;
    if config.denied_planes >= all {
        let allowed = format!("0 to {}: a bit for each of {} planes, one left", all - 1, spec.fabric.planes);
        return Err(DriverError::config("transport.denied_planes", config.denied_planes, allowed));
    }
    Ok(())
}

fn check_payload(spec: &Spec, data: &Data, ranks: usize) -> Result<(), DriverError> {
    let Some(payload) = &spec.payload else {
        return Ok(());
    };
    check_ranges((&data.fills, &data.expects), (ranks, spec.memory_bytes, payload.dtype()?))?;
    let bytes = ranks as u64 * spec.memory_bytes;
    match data.memory {
        Some(memory) if memory.len() as u64 != bytes => {
            Err(DriverError::config("memory", format!("{} bytes", memory.len()), format!("{bytes} bytes")))
        }
        _ => Ok(()),
    }
}

/// Fills and expectations lie inside the memory of ranks.
pub(crate) fn check_ranges(
    (fills, expects): (&[Fill], &[Expect]),
    (ranks, memory, dtype): (usize, u64, Dtype),
) -> Result<(), DriverError> {
    let size = dtype.size() as u64;
    let fits = |rank: u32, offset: u64, count: u64| {
        (rank as usize) < ranks
            && count.checked_mul(size).and_then(|b| b.checked_add(offset)).is_some_and(|end| end <= memory)
    };
    if fills.iter().any(|f| !fits(f.rank, f.offset, f.count)) {
        return Err(DriverError::config("fill", "a range", "ranges inside the memory of a rank"));
    }
    if expects.iter().any(|e| !fits(e.rank, e.offset, e.count)) {
        return Err(DriverError::config("expect", "a range", "ranges inside the memory of a rank"));
    }
    Ok(())
}

fn verify(spec: &Spec, data: Data) -> Result<Option<Verify>, DriverError> {
    let Some(payload) = &spec.payload else {
        return Ok(None);
    };
    let (dtype, ranks) = (payload.dtype()?, spec.hosts_of_ranks.len());
    let bytes = spec.memory_bytes as usize;
    let memory = match kept(ranks.saturating_mul(bytes)) {
        Some(kept) => kept.renew(ranks, bytes, dtype),
        None => Memory::new(ranks, bytes, dtype),
    };
    let mut memory = memory.map_err(|e| {
        DriverError::config(
            "memory_bytes",
            format!("{bytes} bytes for each of {ranks} ranks ({e})"),
            "what the machine has",
        )
    })?;
    if let Some(initial) = data.memory {
        (0..ranks).for_each(|rank| memory.write(rank, 0, &initial[rank * bytes..(rank + 1) * bytes]));
    }
    Ok(Some(Verify {
        memory,
        pattern: Pattern::new(dtype, ranks as u32),
        fills: data.fills,
        expects: data.expects,
        flip_at: spec.inject.map_or(0, |i| i.flip_byte_at),
        placements: 0,
        result: None,
        give_back: data.memory.is_some(),
    }))
}

/// Refuses operations that the transport does not have.
fn check_operations(spec: &Spec, program: &Program, endpoints: &[Endpoint]) -> Result<(), DriverError> {
    let has = |op: Op| opcode(op).is_none_or(|opcode| endpoints.iter().all(|e| e.supports(opcode)));
    let Some((i, op)) = program.ops().enumerate().find(|&(_, op)| !has(op)) else {
        return Ok(());
    };
    let transport = match &spec.transport {
        TransportConfig::MetaRoce(_) => "metaroce",
        TransportConfig::RoceV2(_) => "rocev2",
        TransportConfig::Mrc(_) => "mrc",
    };
    let name = Op::ALL[op as usize].1;
    let names: Vec<&str> =
        Op::ALL.iter().filter(|(op, _)| has(*op) && !matches!(op, Op::Wait | Op::Set)).map(|&(_, name)| name).collect();
    Err(DriverError::config(&format!("op[{i}]"), name, format!("of {transport}: {}", names.join(", "))))
}

// [I2]
/// Registers the memory of all ranks.
fn register(spec: &Spec, data: &Data, endpoints: &mut [Endpoint]) -> Result<(), DriverError> {
    let rest = if data.regions.is_empty() { Access::ALL } else { Access::LOCAL };
    for host in (0..spec.hosts_of_ranks.len()).flat_map(|rank| spec.hosts_of(rank)) {
        endpoints[host as usize].register(0, spec.memory_bytes, rest);
    }
    for (i, region) in data.regions.iter().enumerate() {
        let refuse = |column: &str, value: u64, allowed: String| {
            Err(DriverError::config(&format!("{column}[{i}]"), value, allowed))
        };
        if region.rank as usize >= spec.hosts_of_ranks.len() {
            return refuse("region_rank", region.rank.into(), format!("below {}", spec.hosts_of_ranks.len()));
        }
        if region.offset.checked_add(region.len).is_none_or(|end| end > spec.memory_bytes) {
            let allowed = format!("a range of region_len bytes inside the {} of a rank", spec.memory_bytes);
            return refuse("region_offset", region.offset, allowed);
        }
        if region.access > 7 {
            return refuse("region_access", region.access.into(), "0 to 7".to_owned());
        }
        let granted = [(1, Access::WRITE), (2, Access::READ), (4, Access::ATOMIC)];
        let granted = granted.into_iter().filter(|&(bit, _)| region.access & bit != 0);
        let access = granted.fold(Access::LOCAL, |all, (_, one)| all.and(one));
        for host in spec.hosts_of(region.rank as usize) {
            endpoints[host as usize].register(region.offset, region.len, access);
        }
    }
    Ok(())
}

// [F11.extensions]
/// Takes planes out of use.
fn deny(spec: &Spec, data: &Data, connections: &Connections, endpoints: &mut [Endpoint]) -> Result<(), DriverError> {
    for (i, denied) in data.denied.iter().enumerate() {
        let refuse =
            |column: &str, value: u32, allowed: String| DriverError::config(&format!("{column}[{i}]"), value, allowed);
        let ranks = spec.hosts_of_ranks.len();
        let Some(of_rank) = connections.get(denied.rank as usize) else {
            return Err(refuse("deny_rank", denied.rank, format!("below {ranks}")));
        };
        let Some(&Connection { host, id, .. }) = of_rank.iter().find(|connection| connection.peer == denied.peer)
        else {
            return Err(refuse("deny_peer", denied.peer, format!("a rank that rank {} talks to", denied.rank)));
        };
        if denied.plane >= spec.fabric.planes {
            return Err(refuse("deny_plane", denied.plane, format!("below {}", spec.fabric.planes)));
        }
        let plane = PlaneId(denied.plane as u8);
        endpoints[host as usize].deny(Time::ZERO, id, plane, true).map_err(|_| {
            let allowed = "with a transport that chooses planes, as long as another one stays in use";
            refuse("deny_plane", denied.plane, allowed.to_owned())
        })?;
    }
    Ok(())
}

/// Length on the wire of a full data packet.
pub(crate) fn full_packet(spec: &Spec) -> u32 {
    match &spec.transport {
        TransportConfig::MetaRoce(c) => lengths::mr_data(c.mtu),
        TransportConfig::RoceV2(c) => lengths::roce_data(c.mtu, false),
        TransportConfig::Mrc(c) => lengths::mrc_data(c.mtu, false),
    }
}

/// No data packet is longer on the wire: the first of a RoCEv2 message has one header more.
fn longest_packet(spec: &Spec) -> u32 {
    full_packet(spec).saturating_add(lengths::RETH)
}

/// Payload rate of the fastest host: all its ports, full packets, headers and gaps taken off.
pub(crate) fn payload_line_rate(spec: &Spec, fabric: &Fabric) -> Rate {
    let of_host = |host| fabric.ports_of(HostId(host)).map(|rate| rate.0).sum();
    let fastest: u64 = (0..spec.fabric.hosts).map(of_host).max().unwrap_or(0);
    let share = u128::from(fastest) * u128::from(spec.transport.mtu()) / u128::from(full_packet(spec));
    Rate(share as u64)
}

/// What each host sends to each other one, and, with 0 bytes, what it only acknowledges.
fn demands(spec: &Spec, program: &Program) -> Vec<Demand> {
    let mut bytes = BTreeMap::new();
    for rank in 0..program.ranks() {
        for wqe in program.of_rank(rank).filter(|wqe| wqe.op.has_peer()) {
            let (own, peer) = spec.hosts_between(rank as u32, wqe.peer);
            let (own, peer) = (HostId(own), HostId(peer));
            let (out, back) = match wqe.op {
                Op::Send | Op::Write | Op::WriteImm => (wqe.bytes, 0),
                Op::Read => (0, wqe.bytes),
                _ => (0, 0),
            };
            *bytes.entry((own, peer)).or_insert(0u64) += out;
            *bytes.entry((peer, own)).or_insert(0u64) += back;
        }
    }
    bytes.into_iter().map(|((src, dst), bytes)| Demand { src, dst, bytes: Bytes(bytes) }).collect()
}

// [F10.state-of-a-pair]
/// Opens a connection for each pair of ranks that talk.
fn connect(spec: &Spec, pairs: &[(u32, u32)], endpoints: &mut [Endpoint]) -> Connections {
    let mut connections: Connections = vec![Vec::new(); spec.hosts_of_ranks.len()];
    for &(a, b) in pairs {
        let (host_a, host_b) = spec.hosts_between(a, b);
        let at_a = endpoints[host_a as usize].connect(HostId(host_b));
        let at_b = endpoints[host_b as usize].connect(HostId(host_a));
        endpoints[host_a as usize].bind(at_a, at_b);
        endpoints[host_b as usize].bind(at_b, at_a);
        connections[a as usize].push(Connection { peer: b, host: host_a, id: at_a });
        connections[b as usize].push(Connection { peer: a, host: host_b, id: at_b });
    }
    for (rank, list) in connections.iter_mut().enumerate() {
        for &Connection { peer, host, id } in &*list {
            let (_, other) = spec.hosts_between(rank as u32, peer);
            let size = endpoints[other as usize].connections();
            endpoints[host as usize].crowd(id, size);
        }
        list.sort_unstable_by_key(|connection| connection.peer);
    }
    connections
}
