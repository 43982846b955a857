//! A data packet and its acknowledgement between two endpoints, without fabric: made, received, acknowledged.
//!
//! Endless Writes of 1 MiB, batches of packets with a round trip between them, nothing lost. A batch is all that one
//! call after the other of the same kind gets: code and state of that call are warm.

#![expect(clippy::disallowed_methods, reason = "a bench measures wall time")]

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use metaroce_proto::{
    Access, Endpoint, Environment, MetaRoceConfig, MrcConfig, RoceConfig, TransportConfig, WorkRequest,
};
use metaroce_wire::{ConnId, HostId, Opcode, Packet, PlaneId, Rate, Rkey, Time};

const PLANE: PlaneId = PlaneId(0);
const MESSAGE: u64 = 1 << 20;
const BATCH: usize = 64;
const RTT: Time = Time(10_000_000);
/// A full packet at 400 Gbit/s.
const SLOT: Time = Time(83_200);

/// Time, and the packets that it was spent on.
type Part = (Duration, u64);

const PARTS: [&str; 3] = ["send", "receive", "acknowledge"];
const SEND: usize = 0;
const RECEIVE: usize = 1;
const ACKNOWLEDGE: usize = 2;

struct Pair {
    sender: Endpoint,
    receiver: Endpoint,
    rkey: Rkey,
    now: Time,
    batch: Vec<Packet>,
}

fn endpoint(config: &TransportConfig, host: u32) -> (Endpoint, Rkey) {
    let environment = Environment { host: HostId(host), ports: vec![Rate::from_gbps(400)], base_rtt: RTT, routes: 8 };
    let mut endpoint = Endpoint::new(config, environment);
    let rkey = endpoint.register(0, MESSAGE, Access::ALL);
    let connection = endpoint.connect(HostId(1 - host));
    endpoint.bind(connection, ConnId(0));
    (endpoint, rkey)
}

impl Pair {
    fn new(config: &TransportConfig) -> Pair {
        let ((sender, _), (receiver, rkey)) = (endpoint(config, 0), endpoint(config, 1));
        let mut pair = Pair { sender, receiver, rkey, now: Time::ZERO, batch: Vec::with_capacity(2 * BATCH) };
        (0..4).for_each(|_| pair.post());
        pair
    }

    fn post(&mut self) {
        let request = WorkRequest { opcode: Opcode::Write, len: MESSAGE, rkey: self.rkey, ..WorkRequest::default() };
        self.sender.post(self.now, ConnId(0), request).expect("an open connection");
    }

    /// One batch there and its acknowledgements back.
    fn round(&mut self, spent: &mut [Part; 3]) {
        let begin = Instant::now();
        for _ in 0..BATCH {
            let Some(packet) = self.sender.poll_transmit(self.now, PLANE) else { break };
            self.batch.push(packet);
            self.now += SLOT;
        }
        add(&mut spent[SEND], begin, self.batch.len());

        let begin = Instant::now();
        for packet in &self.batch {
            self.receiver.handle_packet(self.now, &packet.envelope, &packet.body);
            self.now += SLOT;
        }
        add(&mut spent[RECEIVE], begin, self.batch.len());

        self.batch.clear();
        self.now += RTT;
        expire(&mut self.receiver, self.now);
        while let Some(packet) = self.receiver.poll_transmit(self.now, PLANE) {
            self.batch.push(packet);
        }
        let begin = Instant::now();
        for packet in &self.batch {
            self.sender.handle_packet(self.now, &packet.envelope, &packet.body);
        }
        add(&mut spent[ACKNOWLEDGE], begin, self.batch.len());

        self.batch.clear();
        while self.sender.poll_completion().is_some() {
            self.post();
        }
        expire(&mut self.sender, self.now);
    }
}

fn add(part: &mut Part, begin: Instant, packets: usize) {
    *part = (part.0 + begin.elapsed(), part.1 + packets as u64);
}

fn expire(endpoint: &mut Endpoint, now: Time) {
    if endpoint.poll_timeout() <= now {
        endpoint.handle_timeout(now);
    }
}

fn packets(c: &mut Criterion) {
    let transports = [
        ("metaroce", TransportConfig::MetaRoce(MetaRoceConfig::default())),
        ("rocev2", TransportConfig::RoceV2(RoceConfig::default())),
        ("mrc", TransportConfig::Mrc(MrcConfig::default())),
    ];
    for (name, config) in transports {
        let mut group = c.benchmark_group(format!("endpoint/{name}"));
        group.throughput(Throughput::Elements(1));
        for (part, name) in PARTS.into_iter().enumerate() {
            let mut pair = Pair::new(&config);
            group.bench_function(name, |b| {
                b.iter_custom(|wanted| {
                    let (mut spent, mut rounds) = ([Part::default(); 3], 0);
                    while spent[part].1 < wanted {
                        pair.round(&mut spent);
                        rounds += 1;
                        assert!(rounds < 1_000 || spent[RECEIVE].1 > 0, "nothing moves any more");
                    }
                    let (time, packets) = spent[part];
                    Duration::from_nanos((time.as_nanos() * u128::from(wanted) / u128::from(packets)) as u64)
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, packets);
criterion_main!(benches);
