"""Names of Keras and PyTorch, with caffelite's names. Imported only if a name is missing in caffelite."""

from __future__ import annotations

import difflib
import dis
import sys
from collections.abc import Iterable
from typing import Any

_DROPOUT = "only cl.Dropout(p), which drops single elements and not whole channels"

#: The hint of each name. Names that have the same hint have blanks between them.
NAMES = {
    # Modules
    "nn layers": "the layers themselves, cl.Linear, cl.ReLU, cl.Conv2d …",
    "keras": "cl.Model with fit, predict and evaluate",
    "models Sequential": "cl.Model([…])",
    "ops F backend activations": "functions and methods of Tensors, cl.concatenate, x.relu(), x.softmax() …",
    "optim": "cl.SGD, cl.Adam, cl.AdamW …",
    "sparse": "sparse matrices of SciPy as inputs, and adjacency @ h of such an input in a call",
    "losses": "cl.SoftmaxLoss, cl.SigmoidLoss, cl.MSELoss …",
    "utils preprocessing": "cl.DataGenerator, cl.Windows, cl.Model(seed=0), and integer labels without to_categorical",
    "onnx sklearn pytorch torch mpi MLPClassifier": "modules for it: import caffelite.onnx, .sklearn, .pytorch or .mpi",
    "AveragedModel swa_utils SwapEMAWeights": "cl.callbacks.AverageWeights",
    "lr_scheduler": "cl.schedules, as lr=cl.schedules.cosine(0.1, steps=1000)",
    # Models and data
    "Module Layer": "cl.Model, whose subclasses write call; or cl.Function",
    "Input InputLayer": "layers with sizes, cl.Model([cl.Linear(64, 10), …]), and subclasses with call(self, a, b)",
    "Parameter Variable": "cl.Tensor(…, requires_grad=True)",
    "DataLoader Dataset TensorDataset PyDataset": "cl.DataGenerator(x, y, batch_size=32)",
    "load_model": 'cl.load(path, custom={"Scale": Scale})',
    "save_model": "model.save(path)",
    "clone_model": "copy.deepcopy(model), and model.initialize(seed) to draw it again",
    "Classifier": "cl.MLP(inputs, [100, classes]) and loss=cl.SoftmaxLoss(); or caffelite.sklearn.MLPClassifier",
    "accuracy": 'fit(…, metrics=["accuracy"]), and cl.metrics.accuracy(scores, labels)',
    "timeseries_dataset_from_array": "cl.Windows(series, length, horizon), whose y follows the window: do not shift it",
    "image_dataset_from_directory": "cl.datasets.folder(path)",
    "to_categorical": "integer labels, which losses take as they are",
    "grad": "cl.gradient(f, x), or loss.backward() and p.grad; there are no second derivatives",
    "GradientTape": "loss(model(x), y).backward(), optimizer.step() and optimizer.zero_grad()",
    "manual_seed set_random_seed": "cl.Model(seed=0); there is no global seed",
    "from_numpy as_tensor convert_to_tensor constant cast": "cl.Tensor(array)",
    "zeros ones full eye empty zeros_like ones_like linspace": "arrays of NumPy, such as np.zeros(shape, np.float32)",
    "rand randn randint randperm normal multinomial": "generators of NumPy, such as rng.normal(size=shape)",
    "tril triu": "NumPy's masks: keep np.tril(np.ones((n, n), bool)) in an attribute",
    "autocast mixed_precision bfloat16": 'fit(…, precision="bfloat16")',
    "moons make_moons": "cl.datasets.spiral(); scikit-learn has x, y = sklearn.datasets.make_moons(noise=0.1)",
    # Layers
    "Dense": "cl.Linear(in_features, out_features)",
    "Conv1DTranspose Conv2DTranspose": "cl.ConvTranspose1d and cl.ConvTranspose2d",
    "DepthwiseConv2D": "cl.Conv2d(channels, channels, kernel_size, groups=channels)",
    "MaxPooling1D MaxPool1D MaxPooling2D MaxPool2D": "cl.MaxPool1d and cl.MaxPool2d",
    "AveragePooling1D AveragePooling2D": "cl.AvgPool1d and cl.AvgPool2d",
    "GlobalAveragePooling1D": "cl.GlobalAvgPool(axis=1), of (n, length, features)",
    "GlobalMaxPooling1D": "cl.GlobalMaxPool(axis=1), of (n, length, features)",
    "GlobalAveragePooling2D AdaptiveAvgPool1d AdaptiveAvgPool2d adaptive_avg_pool2d": "cl.GlobalAvgPool()",
    "GlobalMaxPooling2D AdaptiveMaxPool1d AdaptiveMaxPool2d": "cl.GlobalMaxPool()",
    "UpSampling2D": "cl.Upsample(scale)",
    "BatchNormalization BatchNorm1d BatchNorm2d BatchNorm3d": "cl.BatchNorm(features)",
    "LayerNormalization": "cl.LayerNorm(features)",
    "GroupNormalization": "cl.GroupNorm(groups, channels)",
    "InstanceNorm1d InstanceNorm2d InstanceNorm3d": "cl.InstanceNorm(channels)",
    "RMSNormalization": "cl.RMSNorm(features)",
    "Dropout1d Dropout2d SpatialDropout1D SpatialDropout2D AlphaDropout GaussianDropout": _DROPOUT,
    "GaussianNoise": "no layer of noise: cl.augment changes batches",
    "SeparableConv2D SeparableConv2d": "two layers, cl.Conv2d(c, c, size, groups=c) and cl.Conv2d(c, channels, 1)",
    "Conv3D Conv3d": "no convolution of volumes, only cl.Conv1d and cl.Conv2d",
    "ConvLSTM1D ConvLSTM2D": "no such layer: cl.Conv2d on each image, and then cl.LSTM",
    "Cropping1D Cropping2D": "slices of a Tensor, x[:, :, 1:-1, 1:-1], in the call of a cl.Model",
    "Dot": "(x * y).sum(axis=1) of Tensors",
    "SELU selu": "1.0507 * cl.elu(x, 1.67326), in the call of a cl.Model",
    "GLU glu": "a * b.sigmoid() of the halves a, b = cl.split(x, 2, axis=1), in the call of a cl.Model",
    "SimpleRNN": "cl.RNN(features, hidden)",
    "Bidirectional": "the option of recurrent layers, cl.GRU(features, hidden, bidirectional=True)",
    "TimeDistributed": "nothing of this name: cl.Linear takes (n, length, features) too",
    "Masking": "lengths of recurrent layers, gru(x, lengths=lengths), and masks of attention, block(x, mask)",
    "TransformerEncoder TransformerEncoderLayer": "cl.TransformerBlock, one for each layer",
    "TransformerDecoderLayer": "cl.TransformerBlock(…, causal=True)",
    "TextVectorization Tokenizer StringLookup": "cl.Vocabulary(texts); or cl.Columns(frame) for a table",
    "Normalization StandardScaler OneHotEncoder": "cl.Columns(frame) for a table; or cl.BatchNorm(features) at first",
    "Rescaling": "no layer for this: divide the array, x / 255",
    "RepeatVector": "cl.repeat(x[:, None], n, axis=1), in the call of a cl.Model",
    "ModuleList ModuleDict": "lists and dicts of layers in attributes",
    "add_weight": "cl.Tensor(array, requires_grad=True) in an attribute",
    "Permute": "cl.functions.Transpose(0, 2, 1), with the axis of the rows; or x.transpose(0, 2, 1) of a Tensor",
    "Activation": "a layer for each, cl.ReLU(), cl.Tanh() …",
    "ZeroPadding1D ZeroPadding2D ZeroPad2d ReflectionPad1d ReflectionPad2d": 'cl.Pad(widths, "zero") or "reflect"',
    "ReLU6": "x.clip(0, 6) of a Tensor",
    "Unflatten": "cl.Reshape(shape)",
    "Lambda": "a cl.Model whose subclass writes call",
    "arange": "numpy.arange: make the array in __init__ and keep it in an attribute",
    "no_gradient": "cl.no_grad()",
    "Add Subtract Multiply Average": "operators of Tensors, such as x * y; or cl.Residual(f), which is x + f(x)",
    "Concatenate cat": "cl.concatenate([a, b], axis=1)",
    "cosine_similarity CosineSimilarity": "(a * b).sum(axis=1) of rows a / (a**2).sum(axis=1, keepdims=True).sqrt()",
    "clip_grad_norm_": "fit(…, clip_norm=1.0) and optimizer.step(clip_norm=1.0)",
    "pack_padded_sequence pad_packed_sequence": "lengths of recurrent layers, gru(x, lengths=lengths)",
    "gradcheck": "cl.check_gradients(f, *inputs)",
    # Losses
    "NLLLoss CategoricalCrossentropy SparseCategoricalCrossentropy cross_entropy nll_loss": "cl.SoftmaxLoss(), of "
    "scores and integer labels",
    "BCEWithLogitsLoss binary_cross_entropy_with_logits": "cl.SigmoidLoss(), of scores",
    "BCELoss BinaryCrossentropy binary_cross_entropy": "cl.SigmoidLoss(), of scores: leave out Sigmoid",
    "L1Loss MeanAbsoluteError l1_loss": "cl.MAELoss()",
    "MeanSquaredError mse_loss": "cl.MSELoss()",
    "SmoothL1Loss Huber smooth_l1_loss huber_loss": "cl.HuberLoss()",
    "Hinge MultiMarginLoss": "cl.HingeLoss()",
    "PoissonNLLLoss Poisson": "cl.PoissonLoss()",
    "GaussianNLLLoss": "cl.GaussianLoss(), of means and log variances",
    "CategoricalFocalCrossentropy": "cl.FocalLoss(), of scores and integer labels",
    "L1 L2 regularizers": "cl.Penalized(loss, parameters, l2=…)",
    "TripletMarginLoss LogCosh": "losses of your own: a function of outputs and targets, of cl.maximum, sums and means",
    "KLDivLoss KLDivergence": "cl.SoftmaxLoss(), whose targets may be probabilities: its gradient is the same",
    "CTCLoss CTC": "no CTC",
    # Optimizers and callbacks
    "Adamax RAdam Rprop Ftrl ASGD Adafactor": "no such rule, but docs/write-an-optimizer.md shows how to write one",
    "CosineAnnealingLR CosineDecay LinearLR PolynomialDecay OneCycleLR": "cl.schedules, such as cosine(0.1, 1000)",
    "ExponentialDecay ExponentialLR StepLR": "cl.schedules.exponential, or steps(0.1, every=1000, factor=0.5)",
    "PiecewiseConstantDecay InverseTimeDecay CosineDecayRestarts": "a callback that sets optimizer.lr; or cl.schedules",
    "Accuracy SparseCategoricalAccuracy Precision Recall AUC": 'metrics=["accuracy", "precision", "recall", "auc"]',
    "SummaryWriter": "cl.callbacks.TensorBoard(folder)",
    "WandbMetricsLogger": "cl.callbacks.WandB()",
    "RandomFlip RandomRotation RandomZoom RandomTranslation RandomCrop RandomBrightness RandomContrast": "cl.augment",
    "LBFGS": "cl.minimize(model, x, y, loss=loss)",
    "EarlyStopping": "cl.callbacks.EarlyStopping",
    "ModelCheckpoint BackupAndRestore": "cl.callbacks.Checkpoint",
    "TerminateOnNaN": "an error for this: fit raises cl.TrainingDiverged",
    "ReduceLROnPlateau": "cl.callbacks.ReduceLROnPlateau",
    "CSVLogger": "cl.callbacks.CSVLog",
    "LearningRateScheduler": "lr=cl.schedules.cosine(…) and others, or a callback that sets optimizer.lr",
    "LambdaCallback": "functions (epoch, history) as callbacks",
    "Callback": "no base class: a callback has __call__(epoch, history), and may have begin(training) and end()",
}

ATTRIBUTES = {
    # of Functions and models
    "trainable": "requires_grad: set it to False to freeze the parameters",
    "compile add_metric": "fit(…, loss=…, optimizer=…, metrics=[…]) without compile",
    "stop_training": "callbacks that return True to end the training",
    "get_weights set_weights": "state_dict(), arrays by name, and load_state_dict(state)",
    "save_weights load_weights": "save(path) and load(path)",
    "modules named_modules": "functions, or model[0] and so on; children() of a model that writes call",
    "count_params": "sum(p.size for p in model.parameters())",
    "train_on_batch train_step minimize": "loss(model(x), y).backward(), optimizer.step() and optimizer.zero_grad()",
    "add_loss": "cl.Penalized(loss, parameters, l2=…), or a loss of your own",
    "eval": "no modes to set: predict and evaluate compute as after eval(), and `with cl.inference(): model(x)` does",
    "train": "no modes to set: fit and model(x) compute as after train(), except in `with cl.inference():`",
    "predict_proba probabilities": "loss.link(model.predict(x)), such as cl.SoftmaxLoss().link(scores)",
    "score": 'evaluate(x, y, loss=loss, metrics=["accuracy"])',
    "partial_fit": "fit again with the same optimizer, which continues the training",
    "trainable_variables trainable_weights variables weights": "parameters(); and named_parameters() and buffers()",
    "get_layer": "the attributes of a model that writes call, or model[0] of a sequence",
    "get_config to_json": "repr(model); and save(path), whose file also has the structure, for cl.load(path)",
    "fit_generator": "fit(batches, …), of any iterable of (x, y)",
    "predict_classes": "predict(x).argmax(axis=1)",
    "apply": "initializer=… of the layers, such as cl.initializers.he_normal; or p.data = array for each parameter",
    "cuda cpu to": "the processor only, and cl.Model(dtype=np.float64)",
    "requires_grad_": "requires_grad = False",
    # of optimizers
    "learning_rate": "lr: optimizer.lr = 0.01",
    "param_groups": "groups",
    # of Tensors
    "view flatten": "x.reshape(len(x), -1)",
    "unsqueeze": "cl.expand_dims(x, axis)",
    "permute swapaxes": "x.transpose(0, 2, 1)",
    "masked_fill": "cl.where(mask, value, x)",
    "clamp": "x.clip(low, high)",
    "norm": "(x**2).sum(axis=1).sqrt()",
    "expand": "operators that broadcast; or cl.repeat(x, n, axis)",
    "gather": "cl.take_along_axis(x, i, axis)",
    "topk sort argsort": "the order of NumPy, i = np.argsort(-x.data, axis=1)[:, :k], and cl.take_along_axis(x, i, 1)",
    "split chunk flip logsumexp maximum minimum": "functions for them: cl.split, cl.flip, cl.logsumexp, cl.maximum …",
    "mm bmm spmm dot": "a @ b",
    "astype float double": "cl.Tensor(x.data, dtype=np.float64)",
}

ARGUMENTS = {
    # of backward
    "create_graph": "no second derivatives; docs/coming-from-pytorch.md has a gradient penalty by differences",
    # of constructors
    "num_layers": "layers=2",
    "batch_first": "inputs (n, length, features) always",
    "return_sequences": "sequences=True",
    "return_state stateful": "gru(x, h0), which returns the last states too",
    "recurrent_dropout": "dropout, between layers",
    "padding_idx mask_zero": "masks of attention and lengths of recurrent layers",
    "norm_first": "only this order: the norm comes first",
    "dim_feedforward hidden_size": "hidden=…",
    "d_model embed_dim embedding_dim output_dim": "size=…",
    "nhead num_heads": "heads=…",
    "key_dim": "key_dim in MultiHeadAttention only",
    "num_embeddings": "count=…",
    "input_dim": "count in Embedding, in_features in Linear",
    "input_size": "in_features=…",
    "num_features normalized_shape": "features=…",
    "epsilon": "eps=…",
    "affine center scale": "scale and shift always",
    "units": "the size of the input first, such as cl.Linear(inputs, 10) and cl.LSTM(inputs, 32)",
    "filters": "the channels of the input first, such as cl.Conv2d(inputs, 16, kernel_size=3)",
    "kernel_regularizer bias_regularizer activity_regularizer": "cl.Penalized(loss, parameters, l2=…), or weight_decay",
    "strides": "stride=…",
    "pool_size": "kernel_size=…",
    "dilation_rate": "dilation=…",
    "rate": "p=…",
    "use_bias": "bias=…",
    "kernel_initializer weight_initializer": "initializer=…, such as cl.initializers.he_normal",
    "embeddings_initializer recurrent_initializer": "initializer=…, such as cl.initializers.uniform(0.05)",
    "activation recurrent_activation": "layers, such as cl.ReLU(); recurrent layers always have tanh and sigmoid",
    "bias_initializer": "initializer=…, with which biases begin at 0",
    "inputs outputs": "cl.Model([…]) for a sequence, or a subclass of cl.Model that writes call(self, a, b)",
    "from_logits": "scores as inputs, always: leave out Softmax and Sigmoid",
    "data_format": "channels first, always: (n, C, H, W)",
    "input_shape batch_input_shape": "the sizes in the layers, cl.Linear(64, 10)",
    "name": "the names of attributes",
    "device": "the processor only",
    # of optimizers
    "learning_rate": "lr=…",
    "beta_1 beta_2": "betas=(0.9, 0.999)",
    "decay": "lr=cl.schedules…, or weight_decay",
    "global_clipnorm": "fit(…, clip_norm=1.0)",
    "use_ema": "callbacks=[cl.callbacks.AverageWeights(0.99)]",
    "gradient_accumulation_steps": "fit(…, accumulate=4)",
    "clipnorm clipvalue": "only fit(…, clip_norm=1.0), the norm of all gradients together",
    # of fit, evaluate and callbacks
    "steps_per_epoch": "epochs that go once through x: its __iter__ may return itertools.islice(batches, 5)",
    "validation_steps validation_freq validation_batch_size": "an evaluation of all validation data after each epoch",
    "initial_epoch": "a second fit, which continues the training; or resume=path, the path of a Checkpoint",
    "verbose": "verbose only in fit: evaluate and callbacks print nothing",
    "return_dict": "a dict as the result, always",
    "restore_best_weights": "restore_best=True, the default",
    "baseline start_from_epoch": "only monitor, patience, min_delta, restore_best and mode",
    "min_delta cooldown": "only monitor, factor, patience, mode and min_lr",
    "save_best_only": "monitor='val_loss', which keeps the best epoch",
    "filepath": "path=…",
    "save_freq period": "every=…, a number of epochs",
    "log_dir": "folder=…",
    # of calls
    "training": "with cl.inference(): …; everywhere else it is training",
    "lengths": "lengths as an input of a recurrent layer: write a subclass of cl.Model whose call takes x and lengths",
    "mask": "a mask as an input of attention: write a subclass of cl.Model whose call takes x and mask",
    "cache": "a cache as an input of attention: write a subclass of cl.Model whose call takes x and cache",
}

REQUIRED = {
    "out_features": "the size of the input first, such as cl.Linear(inputs, 10)",
    "hidden": "the size of the input first, such as cl.LSTM(inputs, 32)",
    "kernel_size": "a kernel size, such as cl.Conv2d(inputs, 16, 3) and cl.MaxPool2d(2)",
    "parameters": "the parameters, such as cl.Adam(model.parameters())",
    "loss": "loss=cl.SoftmaxLoss() for classes or loss=cl.MSELoss() for numbers",
    "optimizer": "optimizer=cl.Adam(model.parameters())",
    "folder": 'a folder for the files, such as mnist("data/mnist", download=True)',
    "tensor": "a Tensor, such as cl.graph(model(x))",
    "sizes": "the sizes of the layers in a list, MLP(2, [100, 3])",
}

#: The losses and optimizers that other frameworks name in a string.
STRINGS = {
    "softmax crossentropy cross_entropy categorical_crossentropy sparse_categorical_crossentropy": "cl.SoftmaxLoss()",
    "sigmoid bce binary_crossentropy": "cl.SigmoidLoss()",
    "mse mean_squared_error squared_error": "cl.MSELoss()",
    "mae l1 mean_absolute_error": "cl.MAELoss()",
    "sgd": "cl.SGD(model.parameters(), lr=0.1)",
}


def _split_names(hints: dict[str, str]) -> dict[str, str]:
    return {name: hint for names, hint in hints.items() for name in names.split()}


NAMES |= {f"{x} load_{x}": f"no data: sklearn.datasets.load_{x}(return_X_y=True)" for x in ("iris", "wine", "diabetes")}
NAMES |= {f"{x}Cell": f"cl.{x}(features, hidden), which goes over a whole sequence" for x in ("RNN", "GRU", "LSTM")}
STRINGS |= {x.lower(): f"cl.{x}(model.parameters())" for x in ("Adam", "AdamW", "RMSProp", "Adagrad", "NAdam", "Lion")}
NAMES, ATTRIBUTES, ARGUMENTS, STRINGS = map(_split_names, (NAMES, ATTRIBUTES, ARGUMENTS, STRINGS))


def name_hint(name: str, known: Iterable[str], prefix: str) -> str:
    """Return the end of a message about a missing name of a module, which has the `known` names; "" without a hint."""
    matches = [candidate for candidate in known if candidate.lower() == name.lower()]
    matches.sort(key=lambda candidate: candidate[0] != name[0])  # of ReLU and relu, Relu means ReLU
    replacement = NAMES.get(name) or (f"{prefix}.{matches[0]}" if matches else ATTRIBUTES.get(name))
    return _replacement_hint(replacement) or did_you_mean(name, known)


def attribute_hint(name: str) -> str:
    """Return the end of a message about a missing attribute; "" if there is no hint."""
    return _replacement_hint(ATTRIBUTES.get(name))


def argument_hint(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown argument of a function with the `known` ones; "" without a hint."""
    return _replacement_hint(ARGUMENTS.get(name)) or did_you_mean(name, known)


def required_hint(names: Iterable[str]) -> str:
    """Return the end of a message about missing arguments; "" if there is no hint."""
    replacements = [REQUIRED[name] for name in names if name in REQUIRED]
    return f"; give {', and '.join(replacements)}" if replacements else ""


def string_hint(**arguments: Any) -> str:
    """Return the end of a message about a loss or an optimizer given as a string; "" if none is."""
    names = {argument: value.lower() for argument, value in arguments.items() if isinstance(value, str)}
    objects = [f"{x}={STRINGS[name]}" if name in STRINGS else REQUIRED[x] for x, name in names.items()]
    return f"; give {', and '.join(objects)}" if objects else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name, with the `known` name that is most like it; "" if none is."""
    known = list(known)
    completions = [candidate for candidate in known if len(name) > 2 and candidate.startswith(name)]
    matches = completions or difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def missing_name_error(module: str, name: str, hint: str) -> AttributeError | ImportError:
    """Return the error that the `__getattr__` of a module raises. Of an AttributeError, `from` would drop the hint."""
    frame = sys._getframe(2)
    if dis.opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM":
        return ImportError(f"cannot import name {name!r} from {module!r}{hint}", name=module)
    return attribute_error(f"module {module!r}", name, hint)


def attribute_error(what: str, name: str, hint: str) -> AttributeError:
    """Return the error for a missing attribute. If there is a hint, Python does not add a guess of its own."""
    message = f"{what} has no attribute {name!r}{hint}"
    return AttributeError(message, name=name, obj=None) if hint else AttributeError(message)


def _replacement_hint(replacement: str | None) -> str:
    return f"; caffelite has {replacement}" if replacement else ""
