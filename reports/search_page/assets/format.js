"use strict";
// Quantities in the words people read, as reports/wording.py writes them.
const format = (() => {
  const GIB = 2 ** 30;
  const grouped = (value, digits = 0) =>
    value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const short = (value, digits) => String(Number(value.toPrecision(digits)));

  function seconds(value) {
    if (Math.abs(value) < 1) return `${short(value * 1e3, 4)} ms`;
    return `${value.toFixed(Math.abs(value) >= 10 ? 2 : 3)} s`;
  }
  const gib = (bytes) => `${(bytes / GIB).toFixed(1)} GiB`;
  const percent = (share, digits = 1) => `${(share * 100).toFixed(digits)} %`;
  // A sign, or both where only the rounding would tell it.
  const change = (share) => (Math.abs(share) < 5e-4 ? "±0.0 %" : signed(share));
  const signed = (share) => `${share > 0 ? "+" : "−"}${Math.abs(share * 100).toFixed(1)} %`;
  function usd(value) {
    for (const [scale, suffix] of [[1e6, " M"], [1e3, " k"]]) {
      if (Math.abs(value) >= scale) return `$${short(value / scale, 3)}${suffix}`;
    }
    return `$${short(value, 3)}`;
  }
  const days = (value) => (value < 3 ? `${(value * 24).toFixed(1)} hours` : `${value.toFixed(1)} days`);
  function flops(value) {
    return `${grouped(value / 1e12, 2)} TFLOP`;
  }
  function bytes(value) {
    if (value === 0 || value >= 0.01 * GIB) return `${grouped(value / GIB, 2)} GiB`;
    return value >= 2 ** 20 ? `${grouped(value / 2 ** 20, 1)} MiB` : `${grouped(value)} bytes`;
  }
  const unit = { s: seconds, bytes, flops };

  // Objectives come with the unit that their values are in.
  function objective(value, of) {
    if (of.name === "step_time") return seconds(value);
    if (of.name === "memory") return gib(value);
    if (of.name === "cost") return usd(value);
    if (of.name === "mfu") return percent(value);
    return `${grouped(value)} ${of.unit}`;
  }
  const OBJECTIVES = {
    cost: "cost of the run", step_time: "step time", tokens_per_s: "tokens/s", mfu: "MFU",
    memory: "memory reserved",
  };
  const name = (of) => OBJECTIVES[of.name] || of.name;
  const plural = (count, word) => `${grouped(count)} ${word}${count === 1 ? "" : "s"}`;

  return { grouped, short, seconds, gib, percent, change, usd, days, flops, unit, objective, name,
           plural, GIB };
})();
