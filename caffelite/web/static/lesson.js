// Eleven steps from one neuron to a net that writes names. Each has a title, its text, the setting of the playground, the speed (steps a
// second, slow enough to watch), the controls that the text names, and a page to read on.

import { $, make } from "./page.js";

const start = { data: "plane", points: 300, noise: 0, split: 0.3, layers: [], activation: "none", loss: "MSELoss", norm: "none",
  dropout: 0, optimizer: "SGD", rate: 0.03, decay: 0, schedule: "constant", batch_size: 32, seed: 0 };

export const STEPS = [
  ["One neuron", "This net is one neuron. It multiplies each of its two inputs by a weight, adds the products, and adds a " +
    "bias. The result is a tilted plane. While the neuron learns, the loss falls, and the background takes on the colours of the points.",
    { ...start }, 30, [], ["downhill.html", "Downhill"]],
  ["The learning rate", "The learning rate is how far each step goes. With 0.001 the net learns " +
    "slowly. Try 0.1: it's much faster. Now try 3: each step goes too far, and the loss grows until the page tells you that the " +
    "training has diverged.",
    { ...start, rate: 0.001 }, 30, ["[data-set=rate]"], ["guide.html#which-learning-rate", "Which learning rate?"]],
  ["Two classes", "These points have two classes. The net has an output for each class, and the larger output wins. One layer " +
    "can only divide the plane by a straight line. No straight line divides these points: the net gets about 60 % of them right.",
    { ...start, data: "xor", rate: 0.1 }, 300, [], ["first-net.html", "A first net in five minutes"]],
  ["A hidden layer", "Now there is a layer of four units between inputs and outputs. Each unit is a neuron with a ReLU, which " +
    "turns numbers below 0 into 0. So each unit bends the plane along a line of its own, and the outputs combine the bends. " +
    "Watch the small pictures while the net learns, and point at one, or tap it, to see it large.",
    { ...start, data: "xor", layers: [4], activation: "ReLU", optimizer: "Adam", rate: 0.03, seed: 11 }, 30, ["#graph"],
    ["first-net.html", "A first net in five minutes"]],
  ["Without an activation", "This net has a hidden layer but no activation. Then all its layers together still make a straight line, and " +
    "it doesn't learn. Choose ReLU or Tanh under Activation, and it learns at once. Or keep the net as it is and add x₁² and x₂² " +
    "under Features: now a straight line is enough.",
    { ...start, data: "circles", layers: [4], activation: "none", optimizer: "Adam", rate: 0.03 }, 300,
    ["[data-set=activation]", "#featurelist"], ["guide.html#why-isn-t-my-net-learning", "Why isn't my net learning?"]],
  ["Luck", "Three units are just enough for a circle: each cuts off one side. The seed decides where the net starts. With seed 1 " +
    "it gets all points right. With seeds 2 and 4 it gets stuck. With seed 3 it's stuck for more than a thousand epochs " +
    "before it finds a way out. Press + above the layer until all four learn at once.",
    { ...start, data: "circles", layers: [3], activation: "ReLU", optimizer: "Adam", rate: 0.03, seed: 1 }, 300,
    ["[data-set=seed]", "#columns"], ["guide.html#how-big-a-net", "How big a net?"]],
  ["Noise", "These moons overlap, so no net can get all points right. Watch the two curves. Both fall at first. After " +
    "about three seconds, the test loss turns. Now choose 300 under Speed, and wait ten seconds: the training loss keeps " +
    "falling, and the test loss rises. The net memorizes the noise. This is overfitting.",
    { ...start, data: "moons", noise: 0.5, points: 150, split: 0.5, layers: [16, 16], activation: "ReLU", optimizer: "Adam", rate: 0.003 }, 30,
    ["#curves", "#speed"], ["generalization.html#two-curves", "Two curves"]],
  ["Against overfitting", "Here weight decay and dropout hold the same net back. Weight decay pulls all weights towards 0. " +
    "Dropout switches units off at random. The border becomes smoother, and the two losses stay closer. Turn each one off, and compare.",
    { ...start, data: "moons", noise: 0.5, points: 150, split: 0.5, layers: [16, 16], activation: "ReLU", optimizer: "AdamW", rate: 0.003, decay: 0.1, dropout: 0.3 }, 300,
    ["[data-set=decay]", "[data-set=dropout]"], ["guide.html#what-if-there-is-little-data", "What if there is little data?"]],
  ["The optimizer", "The optimizer turns gradients into steps. SGD goes straight down the slope. Momentum keeps some of its " +
    "speed. Adam picks a step size for every weight. Try each of the three, and compare their losses after five seconds.",
    { ...start, data: "spiral", noise: 0.1, layers: [8, 8], activation: "ReLU", optimizer: "SGD", rate: 0.03 }, 300,
    ["[data-set=optimizer]"], ["the-framework.html#an-optimizer", "An optimizer"]],
  ["The spiral", "Three arms, two hidden layers. The first layer bends the plane along lines, and the second bends it again. " +
    "Over to you: which is the smallest net that learns the spiral? Click or tap a link to follow one weight, down to its machine instructions.",
    { ...start, data: "spiral", noise: 0.1, layers: [16, 16], activation: "ReLU", optimizer: "Adam", rate: 0.01 }, 300, [],
    ["first-net.html", "A first net in five minutes"]],
  ["Names", "This net reads a name letter by letter, and says which letter comes next. Its second layer is recurrent: it remembers " +
    "the letters before. The loss begins near ln 27 = 3.30, as if the net guessed among 27 letters. Within five seconds it falls " +
    "below 2.3, and gibberish turns into names. Press × above the second layer: now the net sees only the last letter, and its " +
    "test loss stays above 2.4. With the layer it gets below 2.3, and rises again within a minute: the net memorizes.",
    { ...start, data: "names", points: 600, split: 0.2, layers: [8, 16], loss: "SoftmaxLoss", optimizer: "Adam", rate: 0.01 }, 30,
    ["#columns", "#prefix"], ["microgpt.html", "See microgpt learn"]],
];

const PLACES = { "#graph": "The net", "#columns": "The layers", "#featurelist": "Features", "#curves": "The losses" }; // without a label

/** Go to a control that the lesson names, which was out of view, and let it pulse again. */
function showPlace(element) {
  element.scrollIntoView({ block: "center" });
  element.classList.remove("pulse");
  requestAnimationFrame(() => element.classList.add("pulse"));
}

/** Let these controls pulse, and no others, and offer a way to those that are out of view. */
export function pulse(controls) {
  for (const element of document.querySelectorAll(".pulse")) element.classList.remove("pulse");
  $("lessonplaces").replaceChildren(...controls.flatMap((control) => {
    const element = document.querySelector(control);
    element.closest("details")?.setAttribute("open", "");
    element.classList.add("pulse");
    const { top, bottom } = element.getBoundingClientRect(), name = PLACES[control] ?? element.closest("label").firstChild.data;
    return top > 0 && bottom < innerHeight ? [] : make("button", { className: "link", onclick: () => showPlace(element) }, `↓ ${name}`);
  }));
}
