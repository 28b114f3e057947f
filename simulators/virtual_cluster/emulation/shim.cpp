// The CUDA back end of a torch that was built without one: a device guard, the CUDA hooks and the
// timer of DistributedDataParallel. Nothing computes here. Streams and devices are numbers that
// each thread keeps, as CUDA does, so that torch's own autograd engine runs its device threads and
// restores the streams of the forward pass; what the engine records, waits for and synchronises is
// told to the emulator, which writes it down.

#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Registry.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

namespace {

constexpr int kMostDevices = 64;
// As in torch's CUDA stream pool: each priority hands out 32 streams in turn, then again.
constexpr int64_t kStreamsPerPool = 32;

enum class Notice : int {
  kRecord,
  kBlock,
  kSynchroniseEvent,
  kSynchroniseStream,
  kSynchroniseDevice,
  kRecordStream
};
using Listener = void (*)(int notice, int64_t event, int64_t stream);

std::atomic<int> device_count{1};
std::atomic<Listener> listener{nullptr};
std::atomic<int64_t> next_event{1};
std::atomic<int64_t> next_stream[2];

thread_local c10::DeviceIndex current_device = 0;
thread_local int64_t current_stream[kMostDevices] = {};

void tell(Notice notice, int64_t event, int64_t stream) {
  if (auto told = listener.load()) {
    told(static_cast<int>(notice), event, stream);
  }
}

int64_t pooled_stream(bool high_priority) {
  auto turn = next_stream[high_priority].fetch_add(1) % kStreamsPerPool;
  return 1 + turn + (high_priority ? kStreamsPerPool : 0);
}

void check_device(c10::DeviceIndex index) {
  TORCH_CHECK(
      index >= 0 && index < device_count.load(),
      "CUDA error: invalid device ordinal (device ", static_cast<int>(index), " of ",
      device_count.load(), ")");
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::DeviceType::CUDA, current_device}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) {
      check_device(device.index());
      current_device = device.index();
    }
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index() && device.index() < kMostDevices) {
      current_device = device.index();
    }
  }
  c10::Stream getStream(c10::Device device) const override {
    return stream(current_stream[index_of(device)], device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(0, device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return stream(pooled_stream(high_priority), device);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return stream(pooled_stream(priority < 0), device);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    auto& slot = current_stream[index_of(next.device())];
    auto before = stream(slot, next.device());
    slot = next.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  void record(
      void** event,
      const c10::Stream& stream,
      const c10::DeviceIndex,
      const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = reinterpret_cast<void*>(next_event.fetch_add(1));
    }
    tell(Notice::kRecord, reinterpret_cast<int64_t>(*event), stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      tell(Notice::kBlock, reinterpret_cast<int64_t>(event), stream.id());
    }
  }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void* event) const override {
    tell(Notice::kSynchroniseEvent, reinterpret_cast<int64_t>(event), 0);
  }
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 0.0; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    tell(Notice::kSynchroniseStream, 0, stream.id());
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    tell(Notice::kSynchroniseDevice, 0, 0);
  }
  // The engine keeps gradients alive for the streams that use them, as record_stream does.
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (auto memory = reinterpret_cast<int64_t>(data.get_context())) {
      tell(Notice::kRecordStream, memory, stream.id());
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count.load());
  }

 private:
  static c10::DeviceIndex index_of(c10::Device device) {
    return device.has_index() ? device.index() : current_device;
  }
  static c10::Stream stream(int64_t id, c10::Device device) {
    return c10::Stream(c10::Stream::UNSAFE, {c10::DeviceType::CUDA, index_of(device)}, id);
  }
};

// Memory of tensors without data: nothing but a number, by which a storage can be found again.
struct NumberedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t) override {
    static std::atomic<intptr_t> next{1};
    auto* number = reinterpret_cast<void*>(next.fetch_add(1));
    return {nullptr, number, &nothing, c10::Device(c10::DeviceType::Meta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &nothing; }
  void copy_data(void*, const void*, std::size_t) const override {}
  static void nothing(void*) {}
};

struct Philox {
  uint64_t seed = c10::default_rng_seed_val;
  uint64_t offset = 0;
};
static_assert(sizeof(Philox) == 16, "a CUDA generator's state");

// CUDA graphs hold on to a state that several generators share.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(
      c10::DeviceIndex index, std::shared_ptr<Philox> state = std::make_shared<Philox>())
      : GeneratorImpl(
            {c10::DeviceType::CUDA, index}, c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        state_(std::move(state)) {}
  void set_current_seed(uint64_t seed) override { *state_ = {seed, 0}; }
  void set_offset(uint64_t offset) override { state_->offset = offset; }
  uint64_t get_offset() const override { return state_->offset; }
  uint64_t current_seed() const override { return state_->seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(false));
    return state_->seed;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == 16, "RNG state is wrong size");
    std::memcpy(state_.get(), state.data(), 16);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({16}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), state_.get(), 16);
    return state.getIntrusivePtr();
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override {
    auto* generator = dynamic_cast<Generator*>(other.get());
    TORCH_CHECK(generator != nullptr, "a state of another kind of generator");
    state_ = generator->state_;
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::make_intrusive<Generator>(device().index(), state_);
  }
  static c10::DeviceType device_type() { return c10::DeviceType::CUDA; }

 private:
  Generator* clone_impl() const override {
    return new Generator(device().index(), std::make_shared<Philox>(*state_));
  }
  std::shared_ptr<Philox> state_;
};

at::Generator new_generator(c10::DeviceIndex index) {
  return at::Generator(c10::make_intrusive<Generator>(index < 0 ? current_device : index));
}

} // namespace

namespace at {

// torch looks the hooks up by this name.
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool hasCuBLASLt() const override { return true; }
  bool compiledWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  long versionCuDNN() const override { return 91002; }
  long versionRuntimeCuDNN() const override { return 91002; }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(device_count.load()); }
  int getNumGPUs() const override { return device_count.load(); }
  void setCurrentDevice(DeviceIndex index) const override {
    check_device(index);
    ::current_device = index;
  }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    auto before = ::current_device;
    setCurrentDevice(index);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return index < 0 ? ::current_device : exchangeDevice(index);
  }
  // All host memory is as good as pinned; DistributedDataParallel insists on it.
  bool isPinnedPtr(const void*) const override { return true; }
  Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::DeviceType::CPU); }
  const Generator& getDefaultGenerator(DeviceIndex index) const override {
    static auto* generators = new std::vector<Generator>(kMostDevices);
    auto& generator = (*generators)[index < 0 ? ::current_device : index];
    if (!generator.defined()) {
      generator = new_generator(index);
    }
    return generator;
  }
  Generator getNewGenerator(DeviceIndex index) const override { return new_generator(index); }
  void deviceSynchronize(DeviceIndex) const override { tell(Notice::kSynchroniseDevice, 0, 0); }
};

REGISTER_CUDA_HOOKS(CUDAHooks)

} // namespace at

// torch/csrc/distributed/c10d/reducer_timer.hpp takes 12 s to compile for one registry of it, so
// its interface is repeated here. DistributedDataParallel insists on a timer for its device; the
// CPU's, which reads the host's clock, serves.
namespace c10d {

class TORCH_API Timer {
 public:
  enum class Event : uint8_t {};
  virtual void record(Event event);
  virtual std::optional<int64_t> measureDifference(Event start, Event end) = 0;
  virtual ~Timer() = default;
};

TORCH_DECLARE_TYPED_REGISTRY(TimerRegistry, c10::DeviceType, Timer, std::unique_ptr, c10::Device);

} // namespace c10d

extern "C" {

void virtual_cuda_configure(int devices, void (*notices)(int, int64_t, int64_t)) {
  device_count.store(devices);
  listener.store(notices);
}

int virtual_cuda_device() { return current_device; }
int64_t virtual_cuda_stream() { return current_stream[current_device]; }
int64_t virtual_cuda_set_stream(int64_t stream) {
  auto before = current_stream[current_device];
  current_stream[current_device] = stream;
  return before;
}
int64_t virtual_cuda_new_stream(int high_priority) { return pooled_stream(high_priority != 0); }
int64_t virtual_cuda_new_event() { return next_event.fetch_add(1); }
// The number of a storage's memory, 0 when it has none; `storage` is its StorageImpl.
int64_t virtual_cuda_memory(int64_t storage) {
  auto* implementation = reinterpret_cast<c10::StorageImpl*>(storage);
  return reinterpret_cast<int64_t>(implementation->data_ptr().get_context());
}
void virtual_cuda_restart() {
  next_event.store(1);
  next_stream[0].store(0);
  next_stream[1].store(0);
}
}

namespace {

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct RegisterTimer {
  RegisterTimer() {
    c10d::TimerRegistry()->Register(c10::DeviceType::CUDA, [](c10::Device device) {
      return c10d::TimerRegistry()->Create(c10::DeviceType::CPU, device);
    });
  }
} register_timer;

struct RegisterMemory {
  RegisterMemory() {
    static auto* memory = new NumberedMemory();
    // Above torch's own, which gives every meta tensor the same nothing.
    c10::SetAllocator(c10::DeviceType::Meta, memory, /*priority=*/255);
  }
} register_memory;

} // namespace

// Of a torch that was built with CUDA these are called while it is loaded: where
// c10d::get_gil_checker() has a pointer put, and the options that bindings have as a default,
// ProcessGroupNCCL::Options(bool).
extern "C" void* _ZN4c10d15get_gil_checkerEv() {
  static void* kept;
  return &kept;
}
extern "C" void _ZN4c10d16ProcessGroupNCCL7OptionsC1Eb(void* at, bool) {
  new (at) c10d::Backend::Options("nccl");
}
