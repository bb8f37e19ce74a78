// Which heads are chosen, and what that choice is called.
const sorted = (numbers) => [...new Set(numbers)].sort((a, b) => a - b);
const layersOf = (heads) => sorted(heads.map((head) => head.layer));
const numbersOf = (heads) => sorted(heads.map((head) => head.head));

// The heads of a layer ("all": of any) and of a number ("mean": of any).
const fitting = (heads, layer, number) =>
  heads.filter((head) => (layer === "all" || head.layer === +layer) && (number === "mean" || head.head === +number));

// The layer and the number that the chosen heads are all the heads of; null, if they were picked one by one.
function nameOf(heads, chosen) {
  if (chosen.size === heads.length) return ["all", "mean"];
  for (const layer of [...layersOf(heads).map(String), "all"]) {
    for (const number of ["mean", ...numbersOf(heads).map(String)]) {
      const found = fitting(heads, layer, number);
      if (found.length === chosen.size && found.every((head) => chosen.has(headKey(head)))) return [layer, number];
    }
  }
  return null;
}

function titleOf(heads, taken) {
  if (heads.length === 1) return "";
  if (taken.length === 1) return say("one_head", taken[0]);
  if (!taken.length || taken.length === heads.length) return say("all_heads", { count: heads.length });
  const count = taken.length,
    [layer] = nameOf(heads, new Set(taken.map(headKey))) || ["all"];
  return layer === "all" ? say("some_heads", { count }) : say("layer_heads", { layer, count });
}
