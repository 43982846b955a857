//! What a profile is made of: each setting and constant with unit, source and what it may be.
//!
//! A setting is a field of a configuration, a default beside it and a row here, which checks it and
//! shows it. A constant is a row alone and names the value that the code uses.

use serde_json::{Value, json};
use thiserror::Error;

pub use crate::transport::metaroce::settings::METAROCE;
pub use crate::transport::mrc::settings::MRC;
pub use crate::transport::rocev2::settings::ROCEV2;

/// A row of a profile.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Field of the configuration; of a constant, any name that no field has.
    pub name: &'static str,
    /// Unit of the number: "ps", "bytes", "percent"; "choice" or "switch" where it is none.
    pub unit: &'static str,
    /// Where the value comes from, at most [`Setting::SOURCE_LEN`] characters; "ours: why" where nothing is public.
    pub source: &'static str,
    /// What it does, in one line.
    pub what: &'static str,
    /// What it may be.
    pub allowed: Allowed,
}

/// What a setting may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Least and most.
    Range(u64, u64),
    /// At least 0 and below 1.
    Probability,
    /// One of these.
    Choice(&'static [&'static str]),
    /// On or off.
    Switch,
    /// A constant of the model.
    Fixed(u64),
}

/// A setting out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("transport.{field}: {value} is not allowed; allowed: {least} to {most}")]
pub struct RangeError {
    /// Setting.
    pub field: &'static str,
    /// What it is.
    pub value: u64,
    /// Smallest value allowed.
    pub least: u64,
    /// Largest value allowed.
    pub most: u64,
}

impl Setting {
    /// Longest source, characters: a table of settings stays within 120 columns.
    pub const SOURCE_LEN: usize = 48;

    /// A number from `allowed.0` to `allowed.1`.
    pub const fn number(
        name: &'static str,
        unit: &'static str,
        allowed: (u64, u64),
        source: &'static str,
        what: &'static str,
    ) -> Setting {
        Setting { name, unit, source, what, allowed: Allowed::Range(allowed.0, allowed.1) }
    }

    /// A probability.
    pub const fn probability(name: &'static str, source: &'static str, what: &'static str) -> Setting {
        Setting { name, unit: "probability", source, what, allowed: Allowed::Probability }
    }

    /// One of `names`.
    pub const fn choice(
        name: &'static str,
        names: &'static [&'static str],
        source: &'static str,
        what: &'static str,
    ) -> Setting {
        Setting { name, unit: "choice", source, what, allowed: Allowed::Choice(names) }
    }

    /// On or off.
    pub const fn switch(name: &'static str, source: &'static str, what: &'static str) -> Setting {
        Setting { name, unit: "switch", source, what, allowed: Allowed::Switch }
    }

    /// A constant that the code takes as `value`.
    pub const fn fixed(
        name: &'static str,
        unit: &'static str,
        value: u64,
        source: &'static str,
        what: &'static str,
    ) -> Setting {
        Setting { name, unit, source, what, allowed: Allowed::Fixed(value) }
    }

    fn export(&self, value: &Value) -> Value {
        let (kind, value, allowed) = match self.allowed {
            Allowed::Range(least, most) => ("setting", value.clone(), json!({"least": least, "most": most})),
            Allowed::Probability => ("setting", value.clone(), json!({"least": 0, "below": 1})),
            Allowed::Choice(names) => ("setting", value.clone(), json!(names)),
            Allowed::Switch => ("setting", value.clone(), json!([false, true])),
            Allowed::Fixed(value) => ("constant", json!(value), Value::Null),
        };
        json!({
            "name": self.name, "kind": kind, "value": value, "unit": self.unit, "allowed": allowed,
            "source": self.source, "what": self.what,
        })
    }
}

/// Checks the numbers of `values`, an object of settings by name.
///
/// # Errors
/// [`RangeError`] for the first one out of its range.
pub fn check(settings: &[Setting], values: &Value) -> Result<(), RangeError> {
    for setting in settings {
        if let (Allowed::Range(least, most), Some(value)) = (setting.allowed, values[setting.name].as_u64())
            && !(least..=most).contains(&value)
        {
            return Err(RangeError { field: setting.name, value, least, most });
        }
    }
    Ok(())
}

/// What is wrong with the first of `values`, an object of settings by name as a user wrote it, that
/// its row does not allow.
pub fn misfit(settings: &[Setting], values: &Value) -> Option<String> {
    let given = settings.iter().filter_map(|setting| Some((setting, values.get(setting.name)?)));
    given.filter(|(_, value)| !value.is_null()).find_map(|(setting, value)| {
        let allowed = match setting.allowed {
            Allowed::Range(least, most) if value.as_u64().is_none_or(|n| !(least..=most).contains(&n)) => {
                format!("whole numbers, {least} to {most}")
            }
            Allowed::Choice(names) if value.as_str().is_none_or(|name| !names.contains(&name)) => names.join(", "),
            Allowed::Switch if !value.is_boolean() => "true, false".to_owned(),
            _ => return None,
        };
        Some(format!("transport.{}: {value} is not allowed; allowed: {allowed}", setting.name))
    })
}

/// The rows as JSON, each with its value: of a setting the one in `values`, of a constant its own.
pub fn export(settings: &[Setting], values: &Value) -> Value {
    settings.iter().map(|setting| setting.export(&values[setting.name])).collect()
}

/// How the rows fall short of `defaults`, an object of fields, if they do: a field without a row, a row
/// without a field or twice, a default that its row does not allow, a unit that its name contradicts.
pub fn mismatch(settings: &[Setting], defaults: &Value) -> Option<String> {
    let has_row = |name: &str| settings.iter().any(|setting| setting.name == name);
    let mut fields = defaults.as_object().into_iter().flat_map(|fields| fields.keys());
    if let Some(name) = fields.find(|name| !has_row(name)) {
        return Some(format!("{name} is a setting without a row"));
    }
    for (i, setting) in settings.iter().enumerate() {
        let Setting { name, unit, source, what, allowed } = *setting;
        let value = &defaults[name];
        let fits = match allowed {
            Allowed::Range(least, most) => value.as_u64().is_some_and(|n| (least..=most).contains(&n)),
            Allowed::Probability => value.as_f64().is_some_and(|p| (0.0..1.0).contains(&p)),
            Allowed::Choice(names) => value.as_str().is_some_and(|choice| names.contains(&choice)),
            Allowed::Switch => value.is_boolean(),
            Allowed::Fixed(_) => value.is_null(),
        };
        let suffixes = ["ps", "bytes", "percent"].into_iter().filter(|suffix| name.ends_with(&format!("_{suffix}")));
        let complaints = [
            (!fits, format!("its row allows {allowed:?}, its field is {value}")),
            (settings[..i].iter().any(|earlier| earlier.name == name), "it has two rows".to_owned()),
            (suffixes.into_iter().any(|suffix| suffix != unit), format!("it is in {unit}")),
            (!(1..=Setting::SOURCE_LEN).contains(&source.chars().count()), format!("its source is {source:?}")),
            (what.is_empty() || what.contains('\n'), format!("it does {what:?}")),
        ];
        if let Some((_, complaint)) = complaints.into_iter().find(|&(holds, _)| holds) {
            return Some(format!("{name}: {complaint}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MetaRoceConfig, MrcConfig, RoceConfig, TransportConfig};

    fn transports() -> [(&'static [Setting], Value); 3] {
        [
            (METAROCE, serde_json::to_value(MetaRoceConfig::default()).expect("a configuration")),
            (ROCEV2, serde_json::to_value(RoceConfig::default()).expect("a configuration")),
            (MRC, serde_json::to_value(MrcConfig::default()).expect("a configuration")),
        ]
    }

    #[test]
    fn every_field_has_a_row_and_every_row_a_field() {
        for (settings, defaults) in transports() {
            assert_eq!(mismatch(settings, &defaults), None);
        }
    }

    #[test]
    fn a_missing_or_odd_row_is_told() {
        let (rows, defaults) = transports()[0].clone();
        let without: Vec<Setting> = rows.iter().copied().filter(|row| row.name != "tail_slack_ps").collect();
        assert_eq!(mismatch(&without, &defaults).as_deref(), Some("tail_slack_ps is a setting without a row"));
        let odd = [
            (Setting::number("nothing", "bytes", (0, 1), "ours", "."), "nothing: its row allows"),
            (Setting::fixed("hints", "bits", 1, "ours", "."), "hints: its row allows"),
            (Setting::fixed("crc", "bytes", 4, "ours", "."), "crc: it has two rows"),
            (Setting::fixed("gap_ps", "us", 4, "ours", "."), "gap_ps: it is in us"),
            (Setting::fixed("gap", "us", 4, "", "."), "gap: its source is"),
        ];
        for (row, told) in odd {
            let message = mismatch(&[rows, &[row]].concat(), &defaults).expect(told);
            assert!(message.starts_with(told), "{message}");
        }
    }

    /// What serde says to a name that is none lists all there are.
    #[test]
    fn a_choice_lists_exactly_the_names_that_the_field_takes() {
        for (settings, defaults) in transports() {
            for row in settings {
                let Allowed::Choice(names) = row.allowed else { continue };
                let mut values = defaults.clone();
                values[row.name] = json!("no such name");
                let told = match values {
                    _ if defaults.get("gap_threshold").is_some() => {
                        serde_json::from_value::<MetaRoceConfig>(values).err()
                    }
                    _ if defaults.get("qps_per_plane").is_some() => serde_json::from_value::<RoceConfig>(values).err(),
                    _ => serde_json::from_value::<MrcConfig>(values).err(),
                };
                let told = told.expect("no such name").to_string();
                let listed = told.split('`').skip(3).step_by(2);
                assert_eq!(listed.collect::<Vec<_>>(), names, "{}: {told}", row.name);
            }
        }
    }

    #[test]
    fn a_long_timer_shorter_than_the_short_one_is_refused() {
        let config = RoceConfig { rto_low_ps: 400_000_000, ..RoceConfig::default() };
        let refused = TransportConfig::RoceV2(config).check().map_err(|e| e.to_string());
        let told = "transport.rto_high_ps: 320000000 is not allowed; allowed: 400000000 to 1000000000000";
        assert_eq!(refused, Err(told.to_owned()));
    }

    #[test]
    fn the_first_number_out_of_range_is_named() {
        for config in [
            TransportConfig::MetaRoce(MetaRoceConfig::default()),
            TransportConfig::RoceV2(RoceConfig::default()),
            TransportConfig::Mrc(MrcConfig::default()),
        ] {
            assert_eq!(config.check(), Ok(()));
            for row in config.settings() {
                let Allowed::Range(least, most) = row.allowed else { continue };
                let fields = serde_json::to_value(&config).expect("a configuration");
                for value in [least.checked_sub(1), Some(most + 1)].into_iter().flatten() {
                    let mut changed = fields.clone();
                    changed[row.name] = json!(value);
                    let changed: TransportConfig = serde_json::from_value(changed).expect("a number of its width");
                    assert_eq!(changed.check(), Err(RangeError { field: row.name, value, least, most }));
                }
            }
        }
    }
}
