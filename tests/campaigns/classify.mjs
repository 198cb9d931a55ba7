// Classify texts with an exported model in transformers.js: node classify.mjs DIRECTORY DTYPE < texts.json
// The input is a list of texts or pairs; the output has a JSON line for each with its label and its input ids.
import path from "node:path";
import { readFileSync } from "node:fs";
import { AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, env } from "@huggingface/transformers";

const [directory, dtype] = process.argv.slice(2);
env.allowRemoteModels = false;
env.localModelPath = path.dirname(directory);
const name = path.basename(directory);
const tokenizer = await AutoTokenizer.from_pretrained(name);
const model = await AutoModelForSequenceClassification.from_pretrained(name, { dtype, device: "cpu" });
const { id2label } = await AutoConfig.from_pretrained(name);

for (const [text, text_pair] of JSON.parse(readFileSync(0, "utf8"))) {
  const inputs = tokenizer(text, { text_pair, truncation: true });
  const { logits } = await model(inputs);
  const values = Array.from(logits.data);
  const label = id2label[values.indexOf(Math.max(...values))];
  console.log(JSON.stringify({ label, ids: Array.from(inputs.input_ids.data, Number) }));
}
